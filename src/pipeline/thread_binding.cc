#include "pipeline/thread_binding.h"

namespace tessera {

void ThreadBinding::bind(std::span<const int> cpus) {
  if (cpus.empty() || bound_ == std::this_thread::get_id()) return;
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  // A refusal (another cpuset) costs speed at most.
  if (sched_setaffinity(0, sizeof(set), &set) == 0) bound_ = std::this_thread::get_id();
}

void ThreadBinding::restore() {
  if (bound_ != std::this_thread::get_id()) return;
  sched_setaffinity(0, sizeof(before_), &before_);
  bound_ = {};
}

}  // namespace tessera
