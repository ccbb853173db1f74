// StderrPump: logs what a child writes, line by line, with a prefix, on its own thread.
//
// Lines are cut at 1024 bytes and stripped of control characters: the child is not believed here
// either. stop() (or the destructor) ends the thread even while the pipe is still open somewhere.
#pragma once

#include <string>
#include <thread>

#include "worker/fd.h"

namespace tessera::worker {

class StderrPump {
 public:
  StderrPump(Fd pipe, std::string prefix);
  ~StderrPump();

 private:
  void run();
  void take(const char* bytes, std::size_t count);
  void flush();

  Fd pipe_;
  Fd stop_;  // eventfd
  std::string prefix_;
  std::string line_;
  std::thread thread_;
};

}  // namespace tessera::worker
