// Q3_K, Q6_K: y = d sc n, where sc is a small signed integer per group of 16 elements and d belongs
// to the block of 256.
#include "quant/codec.h"
#include "quant/fit.h"

namespace tessera {
namespace {

constexpr unsigned kGroups = 16, kLen = 16;

struct SymmetricBlock {
  std::array<std::int8_t, kGroups> scale;
  std::array<std::uint8_t, kSuperElems> n;  // level + half
};

// Levels are in [-half, half - 1], scales in [-scale_half, scale_half - 1].
SymmetricBlock encode_symmetric_groups(const float* x, int half, int scale_half, HalfBytes& d) {
  std::array<float, kGroups> fits;
  for (unsigned g = 0; g < kGroups; ++g) {
    fits[g] = fit_symmetric<kLen>(x + g * kLen, -half, half - 1);
  }
  const auto limit = static_cast<float>(scale_half), top = static_cast<float>(half);
  // The largest scale gets the one level that has no mirror image.
  const float unit = store_scale(d, signed_peak<kGroups>(fits.data()) / -limit);
  const float inv_unit = inverse(unit);

  SymmetricBlock block;
  for (unsigned g = 0; g < kGroups; ++g) {
    const float scale = nearest_level(fits[g] * inv_unit, -limit, limit - 1);
    block.scale[g] = static_cast<std::int8_t>(scale);
    const float inv = inverse(unit * scale);
    for (unsigned i = g * kLen; i < (g + 1) * kLen; ++i) {
      block.n[i] = static_cast<std::uint8_t>(nearest_level(x[i] * inv, -top, top - 1) + top);
    }
  }
  return block;
}

// Scale k + 32 has its low four bits in a nibble of bytes 0..7, its high two in bytes 8..11.
int unpack_scale(const std::array<std::uint8_t, 12>& s, unsigned k) {
  const unsigned low = k < 8 ? s[k] & 15u : s[k - 8] >> 4u;
  const unsigned high = (s[8 + k % 4] >> (2 * (k / 4))) & 3u;
  return static_cast<int>(low | (high << 4)) - 32;
}

void pack_scale(std::array<std::uint8_t, 12>& s, unsigned k, int scale) {
  const auto bits = static_cast<unsigned>(scale + 32);
  const unsigned low = k < 8 ? k : k - 8;
  s[low] = static_cast<std::uint8_t>(s[low] | ((bits & 15) << (k < 8 ? 0 : 4)));
  s[8 + k % 4] = static_cast<std::uint8_t>(s[8 + k % 4] | ((bits >> 4) << (2 * (k / 4))));
}

}  // namespace

void decode(const BlockQ3_K& block, float* y) {
  const float d = block.d.get();
  for (unsigned h = 0; h < 2; ++h) {
    for (unsigned j = 0; j < 4; ++j) {
      for (unsigned l = 0; l < 32; ++l) {
        const int low = (block.q[32 * h + l] >> (2 * j)) & 3;
        const int n = low - ((block.high[l] >> (4 * h + j)) & 1 ? 0 : 4);
        const int scale = unpack_scale(block.scales, 8 * h + 2 * j + l / 16);
        *y++ = d * static_cast<float>(scale) * static_cast<float>(n);
      }
    }
  }
}

void decode(const BlockQ6_K& block, float* y) {
  const float d = block.d.get();
  for (unsigned h = 0; h < 2; ++h) {
    for (unsigned j = 0; j < 4; ++j) {
      for (unsigned l = 0; l < 32; ++l) {
        const unsigned low = block.low[64 * h + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15u;
        const unsigned high = (block.high[32 * h + l] >> (2 * j)) & 3u;
        const int n = static_cast<int>(low | (high << 4)) - 32;
        const int scale = block.scales[8 * h + 2 * j + l / 16];
        *y++ = d * static_cast<float>(scale) * static_cast<float>(n);
      }
    }
  }
}

void encode(const float* x, BlockQ3_K& block) {
  const SymmetricBlock groups = encode_symmetric_groups(x, 4, 32, block.d);
  block.scales = {};
  for (unsigned k = 0; k < kGroups; ++k) pack_scale(block.scales, k, groups.scale[k]);
  block.high = {};
  block.q = {};
  for (unsigned i = 0; i < kSuperElems; ++i) {
    const unsigned h = i / 128, j = i / 32 % 4, l = i % 32, n = groups.n[i];
    block.q[32 * h + l] = static_cast<std::uint8_t>(block.q[32 * h + l] | ((n & 3) << (2 * j)));
    block.high[l] = static_cast<std::uint8_t>(block.high[l] | ((n >> 2) << (4 * h + j)));
  }
}

void encode(const float* x, BlockQ6_K& block) {
  const SymmetricBlock groups = encode_symmetric_groups(x, 32, 128, block.d);
  block.scales = groups.scale;
  for (unsigned h = 0; h < 2; ++h) {
    const std::uint8_t* n = groups.n.data() + 128 * h;
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned a = n[l], b = n[l + 32], c = n[l + 64], e = n[l + 96];
      block.low[64 * h + l] = static_cast<std::uint8_t>((a & 15) | ((c & 15) << 4));
      block.low[64 * h + 32 + l] = static_cast<std::uint8_t>((b & 15) | ((e & 15) << 4));
      block.high[32 * h + l] =
          static_cast<std::uint8_t>((a >> 4) | ((b >> 4) << 2) | ((c >> 4) << 4) | ((e >> 4) << 6));
    }
  }
}

}  // namespace tessera
