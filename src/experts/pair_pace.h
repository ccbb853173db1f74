// PairPace: how long jobs of experts take for a pair of a row and an expert, from those seen so
// far.
//
//   pace.learn(pairs, took);
//   if (pace.known()) const auto expected = pace.us(pairs);
//
// Threads: any.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace tessera {

class PairPace {
 public:
  bool known() const { return pair_us_.load(std::memory_order_relaxed) > 0; }
  double us(std::size_t pairs) const {
    return pair_us_.load(std::memory_order_relaxed) * count(pairs);
  }

  // Slower at once, faster by and by: a batch's pairs share what a single row's do not.
  void learn(std::size_t pairs, double took_us) {
    const double now = std::max(0.01, took_us / count(pairs));
    const double before = pair_us_.load(std::memory_order_relaxed);
    pair_us_.store(now > before ? now : before + (now - before) / 16, std::memory_order_relaxed);
  }
  void raise(std::size_t pairs, double us) {
    const double least = us / count(pairs);
    if (least > pair_us_.load(std::memory_order_relaxed))
      pair_us_.store(least, std::memory_order_relaxed);
  }

 private:
  static double count(std::size_t pairs) {
    return static_cast<double>(std::max<std::size_t>(1, pairs));
  }

  std::atomic<double> pair_us_{0};  // 0: nothing was seen
};

}  // namespace tessera
