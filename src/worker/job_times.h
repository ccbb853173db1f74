// JobTimes: what a worker's jobs took so far, and by when the next one is late.
//
//   job's deadline = begin + times.deadline(pairs, host_us);   // that the host would take for them
//   job is suspect after begin + times.suspect(pairs, host_us);
//   times.learn(pairs, took);         // one that came in time
//   times.learn_late(pairs, took);    // one that was given up and came all the same
//
// What a worker takes is partly its own word, and one that gets slower and slower must not wait
// itself more and more time. So a deadline is never more than a multiple of the host's time for the
// same pairs, and a little besides, whatever was learnt. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "experts/pair_pace.h"

namespace tessera::worker {

class JobTimes {
 public:
  explicit JobTimes(std::chrono::microseconds most) : most_(most) {}

  // host_us 0: not known.
  std::chrono::microseconds deadline(std::size_t pairs, double host_us) const {
    double us = static_cast<double>(most_.count());
    const double own_us = pace_.us(pairs);
    if (own_us > 0) us = std::min(us, kLeastUs + kLateFactor * own_us);
    if (host_us > 0) us = std::min(us, (own_us > 0 ? kMostUs : kFirstUs) + kLateFactor * host_us);
    return std::chrono::microseconds(static_cast<std::int64_t>(us));
  }

  // When the host may begin to compute it too: after some times what it should take, here or there.
  std::chrono::microseconds suspect(std::size_t pairs, double host_us) const {
    const auto latest = deadline(pairs, host_us);
    const double own_us = pace_.us(pairs);
    const double us = own_us > 0 && host_us > 0 ? std::min(own_us, host_us) : own_us + host_us;
    if (us <= 0) return latest;
    return std::min(latest,
                    std::chrono::microseconds(static_cast<std::int64_t>(kSuspectFactor * us)));
  }

  void learn(std::size_t pairs, std::chrono::microseconds took) {
    pace_.learn(pairs, static_cast<double>(took.count()));
  }

  // So that the next one has twice the time: it may have been an accident.
  void learn_late(std::size_t pairs, std::chrono::microseconds took) {
    pace_.raise(pairs, 2 * static_cast<double>(took.count()) / kLateFactor);
  }

 private:
  // A job is late when it takes so many times what one of its size took, and this besides, which is
  // more than a wake-up of a busy machine.
  static constexpr double kLateFactor = 20;
  static constexpr double kLeastUs = 50'000;
  // Or so many times what it would take here, and this besides; the first one finds a worker cold.
  static constexpr double kMostUs = 100'000;
  static constexpr double kFirstUs = 500'000;
  static constexpr double kSuspectFactor = 3;

  std::chrono::microseconds most_;
  PairPace pace_;
};

}  // namespace tessera::worker
