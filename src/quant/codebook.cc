// IQ4_NL, IQ4_XS, MXFP4: 4-bit indices into a fixed table of levels. Within 32 elements the low
// nibble of byte j is element j, the high one element j + 16.
#include <bit>
#include <limits>

#include "quant/codec.h"
#include "quant/fit.h"

namespace tessera {
namespace {

constexpr unsigned kGroup = 32;
using Indices = std::array<std::uint8_t, kGroup>;

// Index of the level nearest to each integer of [-128, 127].
constexpr std::array<std::uint8_t, 256> make_nearest_table() {
  std::array<std::uint8_t, 256> table{};
  for (int v = -128; v < 128; ++v) {
    unsigned best = 0;
    for (unsigned i = 1; i < 16; ++i) {
      const int now = v - kNonlinearLevels[i], then = v - kNonlinearLevels[best];
      if (now * now < then * then) best = i;
    }
    table[static_cast<unsigned>(v + 128)] = static_cast<std::uint8_t>(best);
  }
  return table;
}
constexpr auto kNearest = make_nearest_table();

constexpr std::array<float, 16> make_float_levels() {
  std::array<float, 16> levels{};
  for (unsigned i = 0; i < 16; ++i) levels[i] = kNonlinearLevels[i];
  return levels;
}
constexpr auto kLevels = make_float_levels();

std::uint8_t nearest_index(float v) {
  return kNearest[static_cast<unsigned>(static_cast<int>(nearest_level(v, -128, 127)) + 128)];
}

// The scale d that makes sum (x - d level)^2 small. Either end of the table may meet the peak.
float fit_levels(const float* x) {
  const float peak = signed_peak<kGroup>(x);
  if (std::fabs(peak) < kNothing) return 0.0f;
  float best_scale = 0, best_gain = -1;
  for (const float end : {-138.0f, -132.0f, -127.0f, -122.0f, -117.0f, 104.0f, 113.0f, 120.0f}) {
    const float inv = end / peak;
    Lanes xn{}, nn{};
    for (unsigned i = 0; i < kGroup; ++i) {
      const float n = kLevels[nearest_index(x[i] * inv)];
      xn[i % kLanes] += x[i] * n;
      nn[i % kLanes] += n * n;
    }
    const float sxn = sum(xn), snn = sum(nn);  // snn > 0: no level is zero
    const float gain = sxn * (sxn / snn);
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = sxn / snn;
    }
  }
  return best_scale;
}

Indices nearest_indices(const float* x, float scale) {
  const float inv = inverse(scale);
  Indices n;
  for (unsigned i = 0; i < kGroup; ++i) n[i] = nearest_index(x[i] * inv);
  return n;
}

void pack(const Indices& n, std::uint8_t* q) {
  for (unsigned j = 0; j < 16; ++j) q[j] = static_cast<std::uint8_t>(n[j] | (n[j + 16] << 4));
}

void decode_group(const std::uint8_t* q, float scale, const std::array<std::int8_t, 16>& levels,
                  float* y) {
  for (unsigned j = 0; j < 16; ++j) {
    y[j] = scale * static_cast<float>(levels[q[j] & 15u]);
    y[j + 16] = scale * static_cast<float>(levels[q[j] >> 4u]);
  }
}

// Index of the E2M1 level nearest to v, which is in units of half the smallest step.
std::uint8_t nearest_e2m1(float v) {
  constexpr std::array<float, 7> kMidpoints = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};
  const float magnitude = std::fabs(v);
  unsigned index = 0;
  for (const float midpoint : kMidpoints) index += magnitude > midpoint ? 1u : 0u;
  return static_cast<std::uint8_t>(v < 0 && index > 0 ? index + 8 : index);
}

struct MxFit {
  Indices n;
  float error = 0;
};

MxFit fit_mxfp4(const float* x, std::uint8_t e) {
  const float scale = mxfp4_scale(e), inv = 1.0f / scale;
  MxFit fit;
  Lanes error{};
  for (unsigned i = 0; i < kGroup; ++i) {
    fit.n[i] = nearest_e2m1(x[i] * inv);
    const float gap = x[i] * inv - static_cast<float>(kE2M1Levels[fit.n[i]]);
    error[i % kLanes] += gap * gap;
  }
  fit.error = sum(error) * scale * scale;
  return fit;
}

}  // namespace

void decode(const BlockIQ4_NL& block, float* y) {
  decode_group(block.q.data(), block.d.get(), kNonlinearLevels, y);
}

void decode(const BlockIQ4_XS& block, float* y) {
  const float d = block.d.get();
  const unsigned high = block.scales_high[0] | (unsigned{block.scales_high[1]} << 8);
  for (unsigned b = 0; b < 8; ++b) {
    const unsigned low = (block.scales_low[b / 2] >> (4 * (b % 2))) & 15u;
    const int scale = static_cast<int>(low | (((high >> (2 * b)) & 3u) << 4)) - 32;
    decode_group(block.q.data() + 16 * b, d * static_cast<float>(scale), kNonlinearLevels,
                 y + kGroup * b);
  }
}

void decode(const BlockMXFP4& block, float* y) {
  decode_group(block.q.data(), mxfp4_scale(block.e), kE2M1Levels, y);
}

void encode(const float* x, BlockIQ4_NL& block) {
  pack(nearest_indices(x, store_scale(block.d, fit_levels(x))), block.q.data());
}

void encode(const float* x, BlockIQ4_XS& block) {
  std::array<float, 8> fits;
  for (unsigned b = 0; b < 8; ++b) fits[b] = fit_levels(x + kGroup * b);
  const float unit = store_scale(block.d, signed_peak<8>(fits.data()) / -32.0f);
  const float inv_unit = inverse(unit);
  block.scales_low = {};
  unsigned high = 0;
  for (unsigned b = 0; b < 8; ++b) {
    const float scale = nearest_level(fits[b] * inv_unit, -32.0f, 31.0f);
    const auto bits = static_cast<unsigned>(static_cast<int>(scale) + 32);
    std::uint8_t& low = block.scales_low[b / 2];
    low = static_cast<std::uint8_t>(low | ((bits & 15) << (4 * (b % 2))));
    high |= (bits >> 4) << (2 * b);
    pack(nearest_indices(x + kGroup * b, unit * scale), block.q.data() + 16 * b);
  }
  block.scales_high = {static_cast<std::uint8_t>(high & 0xff),
                       static_cast<std::uint8_t>(high >> 8)};
}

void encode(const float* x, BlockMXFP4& block) {
  const float peak = std::fabs(signed_peak<kGroup>(x));
  if (peak < kNothing) {
    block = {};
    return;
  }
  // With the peak in [2^p, 2^(p+1)) the usual choice maps it to levels 8..16 of 12 at most; one
  // finer step may still be better for the rest, one coarser for the peak.
  int p = 0;
  std::frexp(std::min(peak, std::numeric_limits<float>::max()), &p);
  const int usual = p - 1 - 3 + 128;
  float best_error = std::numeric_limits<float>::infinity();
  MxFit best;
  for (const int candidate : {usual, usual - 1, usual + 1}) {
    const auto e = static_cast<std::uint8_t>(std::clamp(candidate, 2, 254));
    MxFit fit = fit_mxfp4(x, e);
    if (fit.error < best_error || candidate == usual) {
      best_error = fit.error;
      best = fit;
      block.e = e;
    }
  }
  pack(best.n, block.q.data());
}

}  // namespace tessera
