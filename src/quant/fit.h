// Inside the quant room: least-squares search for the scale (and offset) of a small group.
//
// Each fit tries a few scales around the one that maps the largest value to the last level, rounds,
// and solves the least squares problem for the levels that come out. The best of those solutions
// wins. Sums run in eight fixed lanes, so that the result does not depend on the compiler's choice
// of vector width. A NaN ends up at the lowest level.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "quant/block_layout.h"

namespace tessera {

inline constexpr int kLanes = 8;
using Lanes = std::array<float, kLanes>;

inline float sum(const Lanes& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// Nearest integer, ties to even, for |v| < 2^22.
inline float nearest(float v) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the ulp is 1
  return (v + kShift) - kShift;
}

inline float nearest_level(float v, float lo, float hi) {
  v = v > lo ? v : lo;
  v = v < hi ? v : hi;
  return nearest(v);
}

// A group whose largest magnitude is below this is stored as zeros.
inline constexpr float kNothing = 1e-30f;

// 1 / v, or 0 where that would not be finite.
inline float inverse(float v) {
  return std::fabs(v) < kNothing ? 0.0f : 1.0f / v;
}

// Stores v, saturated to the finite range of f16, and returns what was stored.
inline float store_scale(HalfBytes& to, float v) {
  v = std::clamp(v, -65504.0f, 65504.0f);
  to.set_bits(float_to_half(v));
  return to.get();
}

// The element of largest magnitude, with its sign.
template <int N>
float signed_peak(const float* x) {
  float low = 0, high = 0;
  for (int i = 0; i < N; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  return -low > high ? low : high;
}

// The scale d that makes sum (x - d n)^2 small for integers n in [lo, hi], lo = -hi - 1.
template <int N>
float fit_symmetric(const float* x, int lo, int hi) {
  const float peak = signed_peak<N>(x);
  if (std::fabs(peak) < kNothing) return 0.0f;
  const auto flo = static_cast<float>(lo), fhi = static_cast<float>(hi);
  float best_scale = peak / flo, best_gain = -1.0f;
  for (int step = -7; step <= 7; ++step) {
    const float inv = (flo + 0.1f * static_cast<float>(step)) / peak;
    Lanes xn{}, nn{};
    for (int i = 0; i < N; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const float n = nearest_level(x[i + l] * inv, flo, fhi);
        xn[static_cast<unsigned>(l)] += x[i + l] * n;
        nn[static_cast<unsigned>(l)] += n * n;
      }
    }
    const float sxn = sum(xn), snn = sum(nn);
    // The squared error is sum x^2 - sxn^2 / snn.
    const float gain = snn > 0 ? sxn * (sxn / snn) : 0.0f;
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = sxn / snn;
    }
  }
  return best_scale;
}

struct Affine {
  float scale = 0;   // >= 0
  float offset = 0;  // x is about scale * n + offset
};

// The least-squares line through the points (n_i, x_i) given by their sums; the offset is kept at
// or below zero if `offset_not_positive`.
inline Affine solve_line(double count, double sn, double snn, double sx, double sxn,
                         bool offset_not_positive) {
  const double det = count * snn - sn * sn;
  Affine line;
  if (det > 0) {
    line.scale = static_cast<float>((count * sxn - sn * sx) / det);
    line.offset = static_cast<float>((snn * sx - sn * sxn) / det);
  }
  if (det <= 0 || (offset_not_positive && line.offset > 0)) {
    line.scale = snn > 0 ? static_cast<float>(sxn / snn) : 0.0f;
    line.offset = 0;
  }
  return line;
}

// Scale and offset for integers n in [0, hi].
template <int N>
Affine fit_affine(const float* x, int hi, bool offset_not_positive) {
  float low = x[0], high = x[0];
  Lanes total{};
  for (int i = 0; i < N; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    total[static_cast<unsigned>(i % kLanes)] += x[i];
  }
  if (offset_not_positive && low > 0) low = 0;
  if (high - low < kNothing) return {0.0f, low};
  const auto fhi = static_cast<float>(hi);
  const double sx = sum(total);
  Affine best{(high - low) / fhi, low};
  double best_error = INFINITY;
  for (int step = -8; step <= 5; ++step) {
    const float inv = (fhi + 0.1f * static_cast<float>(step)) / (high - low);
    Lanes vn{}, vnn{}, vxn{};
    for (int i = 0; i < N; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const float n = nearest_level((x[i + l] - low) * inv, 0.0f, fhi);
        const auto lane = static_cast<unsigned>(l);
        vn[lane] += n;
        vnn[lane] += n * n;
        vxn[lane] += x[i + l] * n;
      }
    }
    const double sn = sum(vn), snn = sum(vnn), sxn = sum(vxn);
    const Affine line = solve_line(N, sn, snn, sx, sxn, offset_not_positive);
    const double d = line.scale, m = line.offset;
    // The squared error, less the constant sum x^2.
    const double error = d * d * snn + N * m * m + 2 * (d * m * sn - d * sxn - m * sx);
    if (d >= 0 && error < best_error) {
      best_error = error;
      best = line;
    }
  }
  return best;
}

}  // namespace tessera
