// ThreadBinding: which processors a thread runs on.
//
// The thread that drives a team is its first member, so it belongs on the team's cores like the
// others.
#pragma once

#include <sched.h>

#include <span>
#include <thread>

namespace tessera {

class ThreadBinding {
 public:
  // Binds the calling thread, for as long as another thread does not come; nothing for no
  // processors.
  void bind(std::span<const int> cpus);
  // Gives the calling thread its processors back, if it is the one that was bound.
  void restore();

 private:
  std::thread::id bound_;
  cpu_set_t before_{};
};

}  // namespace tessera
