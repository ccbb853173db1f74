// The formats with one scale per 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//
// The 4-bit part of element j is the low nibble of q[j], that of element j + 16 the high one; the
// fifth bit of element j is bit j of qh.
#include <cstdlib>
#include <cstring>

#include "quant/codec.h"
#include "quant/fit.h"

namespace tessera {
namespace {

constexpr int kBlockElems = 32;
using Levels = std::array<std::uint8_t, kBlockElems>;

Levels unpack_nibbles(const std::array<std::uint8_t, 16>& q) {
  Levels n;
  for (unsigned j = 0; j < 16; ++j) {
    n[j] = q[j] & 15;
    n[j + 16] = q[j] >> 4;
  }
  return n;
}

void pack_halves(const Levels& n, std::array<std::uint8_t, 16>& q) {
  for (unsigned j = 0; j < 16; ++j) {
    q[j] = static_cast<std::uint8_t>((n[j] & 15) | ((n[j + 16] & 15) << 4));
  }
}

void add_fifth_bits(const std::array<std::uint8_t, 4>& qh, Levels& n) {
  for (unsigned j = 0; j < kBlockElems; ++j) {
    n[j] = static_cast<std::uint8_t>(n[j] | (((qh[j / 8] >> (j % 8)) & 1) << 4));
  }
}

void pack_fifth_bits(const Levels& n, std::array<std::uint8_t, 4>& qh) {
  qh = {};
  for (unsigned j = 0; j < kBlockElems; ++j) {
    qh[j / 8] = static_cast<std::uint8_t>(qh[j / 8] | ((n[j] >> 4) << (j % 8)));
  }
}

// Levels of y = d (n - half), n in [0, 2 half).
Levels encode_symmetric(const float* x, int half, HalfBytes& d) {
  const float scale = store_scale(d, fit_symmetric<kBlockElems>(x, -half, half - 1));
  const float inv = inverse(scale);
  const auto top = static_cast<float>(half);
  Levels n;
  for (unsigned j = 0; j < kBlockElems; ++j) {
    n[j] = static_cast<std::uint8_t>(nearest_level(x[j] * inv, -top, top - 1) + top);
  }
  return n;
}

// Levels of y = d n + m, n in [0, hi].
Levels encode_affine(const float* x, int hi, HalfBytes& d, HalfBytes& m) {
  const Affine fit = fit_affine<kBlockElems>(x, hi, /*offset_not_positive=*/false);
  const float inv = inverse(store_scale(d, fit.scale));
  const float offset = store_scale(m, fit.offset);
  Levels n;
  for (unsigned j = 0; j < kBlockElems; ++j) {
    n[j] = static_cast<std::uint8_t>(
        nearest_level((x[j] - offset) * inv, 0.0f, static_cast<float>(hi)));
  }
  return n;
}

void decode_levels(const Levels& n, float d, int zero, float m, float* y) {
  for (unsigned j = 0; j < kBlockElems; ++j) y[j] = d * static_cast<float>(n[j] - zero) + m;
}

}  // namespace

void decode(const BlockQ4_0& block, float* y) {
  decode_levels(unpack_nibbles(block.q), block.d.get(), 8, 0.0f, y);
}

void decode(const BlockQ4_1& block, float* y) {
  decode_levels(unpack_nibbles(block.q), block.d.get(), 0, block.m.get(), y);
}

void decode(const BlockQ5_0& block, float* y) {
  Levels n = unpack_nibbles(block.q);
  add_fifth_bits(block.qh, n);
  decode_levels(n, block.d.get(), 16, 0.0f, y);
}

void decode(const BlockQ5_1& block, float* y) {
  Levels n = unpack_nibbles(block.q);
  add_fifth_bits(block.qh, n);
  decode_levels(n, block.d.get(), 0, block.m.get(), y);
}

void decode(const BlockQ8_0& block, float* y) {
  const float d = block.d.get();
  for (unsigned j = 0; j < kBlockElems; ++j) y[j] = d * static_cast<float>(block.q[j]);
}

void encode(const float* x, BlockQ4_0& block) {
  pack_halves(encode_symmetric(x, 8, block.d), block.q);
}

void encode(const float* x, BlockQ4_1& block) {
  pack_halves(encode_affine(x, 15, block.d, block.m), block.q);
}

void encode(const float* x, BlockQ5_0& block) {
  const Levels n = encode_symmetric(x, 16, block.d);
  pack_halves(n, block.q);
  pack_fifth_bits(n, block.qh);
}

void encode(const float* x, BlockQ5_1& block) {
  const Levels n = encode_affine(x, 31, block.d, block.m);
  pack_halves(n, block.q);
  pack_fifth_bits(n, block.qh);
}

void encode(const float* x, BlockQ8_0& block) {
  // Eight bits leave nothing for a search to gain.
  const float inv = inverse(store_scale(block.d, std::fabs(signed_peak<kBlockElems>(x)) / 127.0f));
  for (unsigned j = 0; j < kBlockElems; ++j) {
    block.q[j] = static_cast<std::int8_t>(nearest_level(x[j] * inv, -127.0f, 127.0f));
  }
}

}  // namespace tessera
