// LogitKernels: the loops over a whole vocabulary that sampling needs.
//
// One implementation per instruction set, with the same sixteen lanes in the same order and no
// fused multiply-add: all of them give the same bits on every machine. A NaN counts as minus
// infinity. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera {

// What samplers look through a piece at a time.
inline constexpr std::size_t kLogitBlock = 256;

struct LogitKernels {
  const char* name;
  // Minus infinity when there is nothing larger.
  float (*max)(const float* values, std::size_t n);
  // weights[i] = exp((logits[i] - max) / temperature) for logits <= max, finite max and
  // temperature > 0; 0 below exp(-87). Relative error below 2e-7.
  void (*weigh)(const float* logits, std::size_t n, float max, float temperature, float* weights);
  // The sum of exp(logits[i] - max).
  double (*sum_exp)(const float* logits, std::size_t n, float max);
  double (*sum)(const float* values, std::size_t n);
};

// The fastest that this machine can run.
const LogitKernels& logit_kernels();
// All that it can run, for tests.
std::vector<const LogitKernels*> runnable_logit_kernels();

}  // namespace tessera
