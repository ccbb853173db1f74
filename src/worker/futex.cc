#include "worker/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace tessera::worker {

// What it returns does not matter: the caller looks for itself why it is awake.
void sleep_on(SleepWord& word, Deadline deadline) {
  const std::int64_t left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  if (left <= 0) return;
  const timespec timeout{.tv_sec = static_cast<time_t>(left / 1'000'000'000),
                         .tv_nsec = static_cast<long>(left % 1'000'000'000)};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT, 1u, &timeout, nullptr, 0);
}

void wake(SleepWord& word) {
  if (word.load() != 0 && word.exchange(0) != 0)
    (void)::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace tessera::worker
