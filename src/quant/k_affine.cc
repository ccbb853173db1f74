// Q2_K, Q4_K, Q5_K: y = d sc n - dmin mn, where sc and mn are small unsigned integers per group of
// 16 (Q2_K) or 32 elements and d, dmin belong to the block of 256.
#include "quant/codec.h"
#include "quant/fit.h"

namespace tessera {
namespace {

template <unsigned kGroups>
struct AffineBlock {
  std::array<std::uint8_t, kGroups> scale, min;
  std::array<std::uint8_t, kSuperElems> n;
};

// v / unit to the nearest integer of [0, top].
std::uint8_t small_integer(float v, float inv_unit, float top) {
  return static_cast<std::uint8_t>(nearest_level(v * inv_unit, 0.0f, top));
}

// Fits each group, quantises the groups' scales and minima to [0, scale_top] against the block's d
// and dmin, then rounds the elements against what the decoder will see.
template <unsigned kGroups>
AffineBlock<kGroups> encode_affine_groups(const float* x, int hi, int scale_top, HalfBytes& d,
                                          HalfBytes& dmin) {
  constexpr unsigned kLen = kSuperElems / kGroups;
  std::array<Affine, kGroups> fits;
  float scale_peak = 0, min_peak = 0;
  for (unsigned g = 0; g < kGroups; ++g) {
    fits[g] = fit_affine<kLen>(x + g * kLen, hi, /*offset_not_positive=*/true);
    scale_peak = std::max(scale_peak, fits[g].scale);
    min_peak = std::max(min_peak, -fits[g].offset);
  }
  const auto top = static_cast<float>(scale_top), fhi = static_cast<float>(hi);
  const float scale_unit = store_scale(d, scale_peak / top);
  const float min_unit = store_scale(dmin, min_peak / top);
  const float inv_scale_unit = inverse(scale_unit), inv_min_unit = inverse(min_unit);

  AffineBlock<kGroups> block;
  for (unsigned g = 0; g < kGroups; ++g) {
    block.scale[g] = small_integer(fits[g].scale, inv_scale_unit, top);
    block.min[g] = small_integer(-fits[g].offset, inv_min_unit, top);
    const float inv = inverse(scale_unit * static_cast<float>(block.scale[g]));
    const float offset = min_unit * static_cast<float>(block.min[g]);
    for (unsigned i = g * kLen; i < (g + 1) * kLen; ++i) {
      block.n[i] = static_cast<std::uint8_t>(nearest_level((x[i] + offset) * inv, 0.0f, fhi));
    }
  }
  return block;
}

// Element 64 g + l is the low nibble of q[32 g + l], element 64 g + 32 + l the high one.
void pack_nibbles(const std::array<std::uint8_t, kSuperElems>& n,
                  std::array<std::uint8_t, 128>& q) {
  for (unsigned g = 0; g < 4; ++g) {
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned low = n[64 * g + l] & 15u, high = n[64 * g + 32 + l] & 15u;
      q[32 * g + l] = static_cast<std::uint8_t>(low | (high << 4));
    }
  }
}

}  // namespace

void decode(const BlockQ2_K& block, float* y) {
  const float d = block.d.get(), dmin = block.dmin.get();
  for (unsigned h = 0; h < 2; ++h) {
    for (unsigned j = 0; j < 4; ++j) {
      for (unsigned l = 0; l < 32; ++l) {
        const unsigned s = block.scales[8 * h + 2 * j + l / 16];
        const unsigned n = (block.q[32 * h + l] >> (2 * j)) & 3u;
        *y++ = d * static_cast<float>(s & 15) * static_cast<float>(n) -
               dmin * static_cast<float>(s >> 4);
      }
    }
  }
}

void decode(const BlockQ4_K& block, float* y) {
  const float d = block.d.get(), dmin = block.dmin.get();
  const ScalesAndMins pairs = unpack_scales(block.scales);
  for (unsigned g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(pairs.scale[g]);
    const float min = dmin * static_cast<float>(pairs.min[g]);
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned n = (block.q[32 * (g / 2) + l] >> (4 * (g % 2))) & 15u;
      *y++ = scale * static_cast<float>(n) - min;
    }
  }
}

void decode(const BlockQ5_K& block, float* y) {
  const float d = block.d.get(), dmin = block.dmin.get();
  const ScalesAndMins pairs = unpack_scales(block.scales);
  for (unsigned g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(pairs.scale[g]);
    const float min = dmin * static_cast<float>(pairs.min[g]);
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned low = (block.q[32 * (g / 2) + l] >> (4 * (g % 2))) & 15u;
      const unsigned n = low | (((block.high[l] >> g) & 1u) << 4);
      *y++ = scale * static_cast<float>(n) - min;
    }
  }
}

void encode(const float* x, BlockQ2_K& block) {
  const auto groups = encode_affine_groups<16>(x, 3, 15, block.d, block.dmin);
  for (unsigned g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<std::uint8_t>(groups.scale[g] | (groups.min[g] << 4));
  }
  for (unsigned h = 0; h < 2; ++h) {
    for (unsigned l = 0; l < 32; ++l) {
      unsigned bits = 0;
      for (unsigned j = 0; j < 4; ++j) bits |= unsigned{groups.n[128 * h + 32 * j + l]} << (2 * j);
      block.q[32 * h + l] = static_cast<std::uint8_t>(bits);
    }
  }
}

void encode(const float* x, BlockQ4_K& block) {
  const auto groups = encode_affine_groups<8>(x, 15, 63, block.d, block.dmin);
  block.scales = pack_scales({groups.scale, groups.min});
  pack_nibbles(groups.n, block.q);
}

void encode(const float* x, BlockQ5_K& block) {
  const auto groups = encode_affine_groups<8>(x, 31, 63, block.d, block.dmin);
  block.scales = pack_scales({groups.scale, groups.min});
  pack_nibbles(groups.n, block.q);
  for (unsigned l = 0; l < 32; ++l) {
    unsigned bits = 0;
    for (unsigned g = 0; g < 8; ++g) bits |= (unsigned{groups.n[32 * g + l]} >> 4) << g;
    block.high[l] = static_cast<std::uint8_t>(bits);
  }
}

}  // namespace tessera
