// PairPace: what jobs of experts take for a pair of a row and an expert, from those seen so far: a
// mean in which the last ones count most.
//
//   pace.learn(pairs, took_us);
//   if (const double expected = pace.us(pairs); expected > 0) ...
//
// Jobs are of four sizes, and each has its own mean: where many rows choose an expert, they share
// what is read of it. Threads: any.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>

namespace tessera {

class PairPace {
 public:
  static constexpr std::size_t kSizes = 4;
  // Most pairs of a job of each size but the last.
  static constexpr std::size_t kMostPairs[kSizes - 1] = {16, 128, 1024};
  static std::size_t size_of(std::size_t pairs) {
    const auto* at = std::lower_bound(std::begin(kMostPairs), std::end(kMostPairs), pairs);
    return static_cast<std::size_t>(at - std::begin(kMostPairs));
  }

  // What a job takes; 0: not known. Of its size, or at most what a smaller one's pairs take.
  double us(std::size_t pairs) const {
    for (std::size_t size = size_of(pairs) + 1; size-- > 0;)
      if (const double mean = of(size); mean > 0) return mean * count(pairs);
    return 0;
  }

  void learn(std::size_t pairs, double took_us) {
    const std::size_t size = size_of(pairs);
    const double now = std::max(1.0, took_us) / count(pairs), before = of(size);
    set(size, before == 0 ? now : before + kWeight * (now - before));
  }
  // To `least_us` for so many pairs at least.
  void raise(std::size_t pairs, double least_us) {
    const std::size_t size = size_of(pairs);
    set(size, std::max(of(size), least_us / count(pairs)));
  }

 private:
  static constexpr double kWeight = 1.0 / 8;  // of the last job

  static double count(std::size_t pairs) {
    return static_cast<double>(std::max<std::size_t>(1, pairs));
  }
  double of(std::size_t size) const { return pair_us_[size].load(std::memory_order_relaxed); }
  void set(std::size_t size, double us) { pair_us_[size].store(us, std::memory_order_relaxed); }

  std::array<std::atomic<double>, kSizes> pair_us_{};  // 0: none was seen
};

}  // namespace tessera
