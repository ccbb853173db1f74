// Bypass: which workers are passed over because they cost more than the host, from what their jobs
// took so far.
//
//   if (bypass.passes_over(0, 8, now)) ...              // the host computes worker 0's 8 pairs
//   else if (bypass.learn(0, {.pairs = 8, .us = 30'400.0, .host_us = host_pace.us(8)}, now) ==
//            BypassChange::begun) ...
//
// A layer that gives pairs to a worker spends time on it that nothing hides: it sends them, waits
// for sums, and computes itself what came too late. Whatever that is beyond 1.5 times what the host
// takes for as many pairs is lost. Losses are added up, and what other jobs win is taken off, so
// that a worker may cost `patience` together but not much more, however little each job costs. Two
// jobs in a row must have lost: one may be an accident, which jobs that win make forgotten.
//
// A worker that is passed over is tried again with one layer's pairs after a pause of 250 ms, then
// of twice that, up to 60 s, and of 20 times what the try lost. A try that loses less than a
// twentieth of the patience ends it; the worker has half its patience then. Pauses are short again
// once it was used for 60 s.
//
// Jobs of different sizes are judged apart: a worker that is too far away for a token's few pairs
// may still be the faster one for a prompt's.
//
// No clock in here: each call says what time it is. Threads: that of the device; passed_over() any.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "experts/pair_pace.h"

namespace tessera {

enum class BypassChange { none, begun, ended };

class Bypass {
 public:
  using Clock = std::chrono::steady_clock;

  Bypass(int workers, std::chrono::microseconds patience);
  ~Bypass();

  // Before a layer's pairs go to a worker; of these learn() is then told, unless it did not take
  // them.
  bool passes_over(int worker, std::size_t pairs, Clock::time_point now);
  // Once their sums are there, whoever computed them in the end: what the layer spent on it.
  struct Spent {
    std::size_t pairs = 0;
    double us = 0;
    double host_us = 0;  // that the host takes for as many; 0: not known
  };
  BypassChange learn(int worker, const Spent& spent, Clock::time_point now);

  // The sizes of a worker's jobs that the host computes now: "jobs of up to 16 pairs".
  std::optional<std::string> passed_over(int worker, Clock::time_point now) const;
  static std::string size_text(std::size_t pairs);  // of that job's size

 private:
  struct Jobs;  // of one size
  struct Worker;

  double patience_us_;
  std::size_t workers_;
  std::unique_ptr<Worker[]> of_workers_;
};

}  // namespace tessera
