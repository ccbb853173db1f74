// The bodies of LogitKernels, included by one translation unit per instruction set. Everything is
// in an unnamed namespace and nothing else is included: code compiled for a wider instruction set
// must not be what the linker keeps for the others.
#pragma once

#include <stddef.h>
#include <string.h>

namespace {

constexpr size_t kLanes = 16;
using Floats = float __attribute__((vector_size(64)));
using Ints = int __attribute__((vector_size(64)));

constexpr float kMinusInfinity = -__builtin_inff();

inline void load(Floats& to, const float* from) {
  memcpy(&to, from, sizeof to);
}

// The last n < kLanes values, the rest filled.
inline void load_part(Floats& to, const float* from, size_t n, float fill) {
  to = Floats{} + fill;
  for (size_t i = 0; i < n; ++i) to[i] = from[i];
}

// In place: exp(x) for x <= 0; 0 for x < -87 and for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, the
// Taylor polynomial of degree 7 in r (truncation below 6e-9), times 2^n by its exponent bits.
inline void exp_nonpositive(Floats& x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Ints keep = x > -87.0f;
  const Floats bounded = keep ? x : Floats{} - 87.0f;
  const Floats shifted = bounded * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  // ln 2 in two parts; the first has few enough bits that n times it is exact.
  const Floats r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Ints bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;
  Floats scale;
  memcpy(&scale, &bits, sizeof scale);
  const Floats result = p * scale;
  x = keep ? result : Floats{};
}

inline double add_lanes(const Floats& lanes) {
  double total = 0.0;
  for (size_t i = 0; i < kLanes; ++i) total += static_cast<double>(lanes[i]);
  return total;
}

float max_value(const float* values, size_t n) {
  Floats best = Floats{} + kMinusInfinity;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats x{};
    load(x, values + i);
    best = x > best ? x : best;
  }
  float result = kMinusInfinity;
  for (size_t lane = 0; lane < kLanes; ++lane) result = best[lane] > result ? best[lane] : result;
  for (; i < n; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

void weigh_values(const float* logits, size_t n, float max, float temperature, float* weights) {
  size_t i = 0;
  Floats x{};
  for (; i + kLanes <= n; i += kLanes) {
    load(x, logits + i);
    x = (x - max) / temperature;
    exp_nonpositive(x);
    memcpy(weights + i, &x, sizeof x);
  }
  if (i == n) return;
  load_part(x, logits + i, n - i, kMinusInfinity);
  x = (x - max) / temperature;
  exp_nonpositive(x);
  memcpy(weights + i, &x, (n - i) * sizeof(float));
}

// Lanes are added up in double after this many values each: float error stays at a few ulp.
constexpr size_t kRun = 16 * kLanes;

double sum_of_exp(const float* logits, size_t n, float max) {
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += kRun) {
    const size_t end = begin + kRun < n ? begin + kRun : n;
    Floats lanes{};
    size_t i = begin;
    Floats x{};
    for (; i + kLanes <= end; i += kLanes) {
      load(x, logits + i);
      x = x - max;
      exp_nonpositive(x);
      lanes += x;
    }
    if (i < end) {
      load_part(x, logits + i, end - i, kMinusInfinity);
      x = x - max;
      exp_nonpositive(x);
      lanes += x;
    }
    total += add_lanes(lanes);
  }
  return total;
}

double sum_of_values(const float* values, size_t n) {
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += kRun) {
    const size_t end = begin + kRun < n ? begin + kRun : n;
    Floats lanes{};
    size_t i = begin;
    Floats x{};
    for (; i + kLanes <= end; i += kLanes) {
      load(x, values + i);
      lanes += x;
    }
    if (i < end) {
      load_part(x, values + i, end - i, 0.0f);
      lanes += x;
    }
    total += add_lanes(lanes);
  }
  return total;
}

}  // namespace
