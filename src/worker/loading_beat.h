// LoadingBeat: tells a client every few seconds that this worker is still loading (PROGRESS), from
// its construction to its destruction, on a thread of its own.
//
//   const LoadingBeat beat(channel, std::chrono::seconds(5));
//   load();                                   // whatever it sends goes by send_in_turn()
//
// A client that does not take the frame is left alone: it judges this end, not the other way round.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "worker/transport.h"

namespace tessera::worker {

class LoadingBeat {
 public:
  LoadingBeat(Channel& channel, std::chrono::milliseconds every)
      : thread_([this, &channel, every] { run(channel, every); }) {}
  ~LoadingBeat() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  LoadingBeat(const LoadingBeat&) = delete;
  LoadingBeat& operator=(const LoadingBeat&) = delete;

 private:
  void run(Channel& channel, std::chrono::milliseconds every) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, every, [this] { return over_; })) {
      lock.unlock();
      (void)channel.send_in_turn({.op = Op::progress}, {}, after(std::chrono::seconds(1)));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera::worker
