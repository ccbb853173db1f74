#include "base/step_counter.h"

#include <thread>

#include "base/pause.h"

namespace tessera {

bool StepCounter::reached(std::uint32_t count) const {
  // Wrapping: the two are never far apart. Sequentially consistent, together with advance(): a
  // waiter that parks either sees the new count or is seen there.
  return static_cast<std::int32_t>(count_.load(std::memory_order_seq_cst) - count) >= 0;
}

void StepCounter::advance() {
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) count_.notify_all();
}

void StepCounter::wait_for(std::uint32_t count, std::chrono::microseconds spin) {
  if (reached(count)) return;
  const auto end = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (reached(count)) return;
      pause();
    }
    // The one that is waited for may need this core.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  parked_.fetch_add(1, std::memory_order_seq_cst);
  while (!reached(count)) {
    const std::uint32_t now = count_.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(now - count) >= 0) break;
    count_.wait(now);
  }
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tessera
