// JobTimes: what a worker's jobs took so far, and by when the next one is late.
//
//   job's deadline = begin + times.deadline(pairs);
//   times.learn(pairs, took);         // one that came in time
//   times.learn_late(pairs, took);    // one that was given up and came all the same
//
// A worker that is slow from its first job on is so given the time that it needs. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>

namespace tessera::worker {

class JobTimes {
 public:
  explicit JobTimes(std::chrono::microseconds most) : most_(most) {}

  std::chrono::microseconds deadline(std::size_t pairs) const {
    const double known = pair_us_.load(std::memory_order_relaxed);
    const double us = known > 0 ? kLeastUs + kLateFactor * known * count(pairs)
                                : kFirstUs + kFirstPairUs * count(pairs);
    return std::chrono::microseconds(
        static_cast<std::int64_t>(std::min(us, static_cast<double>(most_.count()))));
  }

  // Slower at once, faster by and by: a batch's pairs share what a single row's do not.
  void learn(std::size_t pairs, std::chrono::microseconds took) {
    const double now = std::max(0.01, static_cast<double>(took.count()) / count(pairs));
    const double before = pair_us_.load(std::memory_order_relaxed);
    pair_us_.store(now > before ? now : before + (now - before) / 16, std::memory_order_relaxed);
  }

  // So that the next one has twice the time: it may have been an accident.
  void learn_late(std::size_t pairs, std::chrono::microseconds took) {
    const double enough = 2 * static_cast<double>(took.count()) / (kLateFactor * count(pairs));
    if (enough > pair_us_.load(std::memory_order_relaxed))
      pair_us_.store(enough, std::memory_order_relaxed);
  }

 private:
  // A job is late when it takes so many times what one of its size took, and this besides, which is
  // more than a wake-up of a busy machine.
  static constexpr double kLateFactor = 20;
  static constexpr double kLeastUs = 50'000;
  // While nothing is known.
  static constexpr double kFirstUs = 2'000'000;
  static constexpr double kFirstPairUs = 1'000;

  static double count(std::size_t pairs) {
    return static_cast<double>(std::max<std::size_t>(1, pairs));
  }

  std::chrono::microseconds most_;
  std::atomic<double> pair_us_{0};  // the slower of what was seen of late; 0: unknown
};

}  // namespace tessera::worker
