// StderrPump: logs what a child writes, line by line, with a prefix, on its own thread.
//
// Lines are cut at 1024 bytes and stripped of control characters: the child is not believed here
// either. stop() (or the destructor) ends the thread even while the pipe is still open somewhere.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "worker/fd.h"

namespace tessera::worker {

class StderrPump {
 public:
  // Fails where the process has no descriptor or no thread left. `keep_reason`: the line in which a
  // child of this program says why it ends is kept, not logged.
  static Result<std::unique_ptr<StderrPump>> start(Fd pipe, std::string prefix,
                                                   bool keep_reason = false);
  ~StderrPump();
  // That line, without "tessera: "; empty: there was none. Ends the thread.
  std::string reason();

 private:
  StderrPump(Fd pipe, Fd stop, std::string prefix, bool keep_reason);
  void stop();
  void run();
  void take(const char* bytes, std::size_t count);
  void flush();

  Fd pipe_;
  Fd stop_;  // eventfd
  std::string prefix_;
  bool keep_reason_;
  std::string line_, reason_;
  std::thread thread_;
};

}  // namespace tessera::worker
