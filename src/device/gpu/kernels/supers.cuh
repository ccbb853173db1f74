// Decode products of Q4_K and Q6_K: one warp's 16 weight rows times 256 columns (a super-block),
// for one row of activations or for eight.
//
// With one row the eight columns of the matrix instruction stand for eight groups of columns: the
// operand of group j is zero but in column j, so that eight products leave 16 x 8 group sums, four
// in each lane and none twice. Lane t of a row (lane = 4 g + t, rows g and g + 8) has in Q4_K
// groups 2t and 2t + 1 of the 256 columns, in Q6_K group t of each 128. It applies their factors,
// and the four lanes are added at the end. With eight rows the columns are rows, every lane
// applies all factors, and keeps the four lanes' sums apart: the same operations in the same order,
// so a row's result does not depend on its neighbours (supers_eight.cuh).
//
// In the machine code a super-block of Q4_K in a run is 134 instructions with loads and sums.
#pragma once

#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

constexpr bool has_supers(BlockType type) {
  return type == BlockType::Q4_K || type == BlockType::Q6_K;
}

// --- Rows, rounded to signed bytes a group of 32 ---

// One row's 256 columns in shared memory: bytes, [group][t] of columns 4t.. and 16 + 4t..; for each
// pair of groups scale, scaled sum, scale, scaled sum; for each group -32 times the integer sums of
// its two halves.
inline constexpr int kSuperFactors = 256, kSuperOffsets = 320;
// From row to row: a shift of eight banks.
__host__ __device__ constexpr int super_row_bytes(int supers) {
  return supers * kSuperBytes + 32;
}

// A lane's eight columns of 256: 32 g + 4 t .. + 3 and 16 further.
struct Eight {
  float4 low, high;
};
__device__ __forceinline__ int eight_at(int lane) {
  return lane / 4 * 32 + lane % 4 * 4;
}
__device__ __forceinline__ Eight load_eight(const float* at, int lane) {
  const float4* from = reinterpret_cast<const float4*>(at + eight_at(lane));
  return {from[0], from[4]};
}
__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ __forceinline__ float4 times(float4 a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}
__device__ __forceinline__ Eight times(const Eight& a, const Eight& b) {
  return {times(a.low, b.low), times(a.high, b.high)};
}
__device__ __forceinline__ float squares(const Eight& v) {
  return sum_squares(v.low) + sum_squares(v.high);
}
// The warp's sum of squares, a group's first: who has made a group passes on one number.
__device__ __forceinline__ float sum_of_groups(float value) {
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

__device__ __forceinline__ std::uint32_t level_word(float4 v, float inverse) {
  const auto level = [&](float x) { return static_cast<unsigned>(__float2int_rn(x * inverse)); };
  return permute(permute(level(v.x), level(v.y), 0x0040u), permute(level(v.z), level(v.w), 0x0040u),
                 0x5410u);
}

// A group's 32 columns, held by four lanes, t = 0 .. 3, as signed bytes: of each lane two words; of
// all four the scale, and in one word the integer sums of the lower and the upper 16 columns. A
// group with an infinity or a NaN gets the scale NaN and zeros. The whole warp takes part.
struct RoundedGroup {
  std::uint32_t low, high;
  float scale;
  int sums;
};
struct GroupScale {
  float scale, inverse;
  bool broken;  // all levels are zeros
};
// `top`: the greatest magnitude's bits.
__device__ __forceinline__ GroupScale group_scale(unsigned top) {
  const float peak = __uint_as_float(top);
  const bool broken = top >= 0x7f800000u;
  const bool tiny = peak < 7.52316385e-37f;  // 2^-120
  const float scale = tiny ? 0.0f : peak * (1.0f / 127.0f);
  return {broken ? __uint_as_float(0x7fc00000u) : scale,
          broken || tiny ? 0.0f : 127.0f / peak, broken};
}
__device__ __forceinline__ RoundedGroup rounded_group(const Eight& v) {
  const auto bits = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
  const auto most = [&](float4 u) {
    return max(max(bits(u.x), bits(u.y)), max(bits(u.z), bits(u.w)));
  };
  unsigned top = max(most(v.low), most(v.high));
  top = max(top, shuffle_xor(top, 1));
  top = max(top, shuffle_xor(top, 2));
  const GroupScale s = group_scale(top);
  RoundedGroup r;
  r.scale = s.scale;
  r.low = level_word(v.low, s.inverse), r.high = level_word(v.high, s.inverse);
  if (s.broken) r.low = r.high = 0;
  // Each sum is below 2^15 in size.
  r.sums = dot4(r.low, 0x01010101u, 0) + dot4(r.high, 0x01010101u, 0) * 65536;
  r.sums += shuffle_xor(r.sums, 1);
  r.sums += shuffle_xor(r.sums, 2);
  return r;
}
// To its place in the super-block `to`, its scale times `factor`.
__device__ __forceinline__ void put_group(const RoundedGroup& r, float factor, int t, int group,
                                          char* to) {
  *reinterpret_cast<uint2*>(to + group * 32 + t * 8) = make_uint2(r.low, r.high);
  if (t != 0) return;
  const int of_low = static_cast<std::int16_t>(r.sums & 0xffff);
  const int of_high = (r.sums - of_low) >> 16;
  *reinterpret_cast<float2*>(to + kSuperFactors + group * 8) =
      make_float2(r.scale * factor, r.scale * static_cast<float>(of_low + of_high) * factor);
  *reinterpret_cast<int2*>(to + kSuperOffsets + group * 8) = make_int2(-32 * of_low, -32 * of_high);
}
// A warp's 256 columns.
__device__ __forceinline__ void round_super(const Eight& v, float factor, int lane, char* to) {
  put_group(rounded_group(v), factor, lane % 4, lane / 4, to);
}
// Of a warp's 32 columns, one a lane, what lane t of four has of their group.
__device__ __forceinline__ Eight group_of_lanes(float value, int lane) {
  const int t = lane % 4 * 4;
  const auto four = [&](int from) -> float4 {
    return {shuffle(value, from), shuffle(value, from + 1), shuffle(value, from + 2),
            shuffle(value, from + 3)};
  };
  return {four(t), four(16 + t)};
}
__device__ __forceinline__ void round_lanes(float value, int lane, int group, char* to) {
  const RoundedGroup r = rounded_group(group_of_lanes(value, lane));
  if (lane < 4) put_group(r, 1.0f, lane, group, to);
}

// --- Weights ---

constexpr std::uint64_t super_scale_bytes(BlockType type) {
  return type == BlockType::Q4_K ? 4 * 48 : 4 * 64;
}

// A warp's super-block as it stands in memory: registers, so that it may be on its way before the
// rows are there.
struct RawSuper {
  std::uint32_t q[4][4];
  std::uint32_t x[4][2];  // Q6_K
  std::uint32_t s[2];     // Q4_K: SixBits of tile t; Q6_K: of group t of each 128 columns
  std::uint32_t d[2];
};

__device__ __forceinline__ void put_words(std::uint32_t* to, uint4 v) {
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void put_words(std::uint32_t* to, uint2 v) {
  to[0] = v.x, to[1] = v.y;
}

template <BlockType kType>
__device__ __forceinline__ void load_super(RawSuper& raw, const Planes& p, int row_tile, int super,
                                           int lane) {
  const int g = lane / 4, t = lane % 4;
  const unsigned index = static_cast<unsigned>(row_tile * p.supers_a_row + super);
  const std::byte* quants = p.data + index * std::uint64_t{2048} + lane * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    put_words(raw.q[i], load_stream(reinterpret_cast<const uint4*>(quants + i * 512)));
  const std::byte* scales = p.data + p.scales + index * super_scale_bytes(kType);
  if constexpr (kType == BlockType::Q4_K) {
    scales += t * 48;
    // By way of L1, since both read of the same sectors.
    raw.s[0] = __ldg(reinterpret_cast<const std::uint32_t*>(scales + g * 4));
    raw.s[1] = __ldg(reinterpret_cast<const std::uint16_t*>(scales + 32 + g * 2));
    put_words(raw.d, load_stream(reinterpret_cast<const uint2*>(
                         p.data + p.supers + index * std::uint64_t{64} + g * 8)));
  } else {
    const std::byte* extra = p.data + p.extra + index * std::uint64_t{1024} + lane * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      put_words(raw.x[i], load_stream(reinterpret_cast<const uint2*>(extra + i * 256)));
    const auto* at = reinterpret_cast<const std::uint32_t*>(scales + g * 8 + t / 2 * 64 +
                                                             t % 2 * 4);
    raw.s[0] = load_stream(at);
    raw.s[1] = load_stream(at + 32);
    raw.d[0] = load_stream(reinterpret_cast<const std::uint32_t*>(
        p.data + p.supers + index * std::uint64_t{32} + g * 4));
  }
}

// Where it may be of either type (kSix) or is Q4_K.
template <bool kSix>
__device__ __forceinline__ void load_either(RawSuper& raw, const Planes& p, int row_tile, int super,
                                            int lane) {
  if (!kSix || p.type == BlockType::Q4_K)
    load_super<BlockType::Q4_K>(raw, p, row_tile, super, lane);
  else
    load_super<BlockType::Q6_K>(raw, p, row_tile, super, lane);
}

// Fetches a super-block into L2.
__device__ __forceinline__ void prefetch_super(const Planes& p, int row_tile, int super, int lane) {
  const unsigned index = static_cast<unsigned>(row_tile * p.supers_a_row + super);
  const char* data = reinterpret_cast<const char*>(p.data);
  if (lane < 16) prefetch_line(data + index * std::uint64_t{2048} + lane * 128);
  if (lane < 2)
    prefetch_line(data + p.scales + index * super_scale_bytes(p.type) + lane * 128);
  if (p.type == BlockType::Q6_K && lane < 8)
    prefetch_line(data + p.extra + index * std::uint64_t{1024} + lane * 128);
}

// The four operand words of one group. Q4_K: odd groups stand 16 times too high; Q6_K: a[3] four
// times.
__device__ __forceinline__ void levels_q4(const std::uint32_t (&q)[4], int odd,
                                          std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = q[i] & (odd ? 0xf0f0f0f0u : 0x0f0f0f0fu);
}
__device__ __forceinline__ std::uint32_t choose_bits(std::uint32_t mask, std::uint32_t a,
                                                     std::uint32_t b) {
  return (a & mask) | (b & ~mask);
}
__device__ __forceinline__ void levels_q6(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2,
                                          std::uint32_t (&a)[4]) {
  a[0] = w0 & 0x3f3f3f3fu;
  a[1] = w1 & 0x3f3f3f3fu;
  a[2] = w2 & 0x3f3f3f3fu;
  const std::uint32_t top = choose_bits(0xc0c0c0c0u, w0, w1 >> 2);
  a[3] = choose_bits(0xf0f0f0f0u, top, w2 >> 4) & 0xfcfcfcfcu;
}

// Of Q6_K 4 (level - 32), as signed bytes.
__device__ __forceinline__ void signed_levels_q6(std::uint32_t w0, std::uint32_t w1,
                                                 std::uint32_t w2, std::uint32_t (&a)[4]) {
  const std::uint32_t top = choose_bits(0xc0c0c0c0u, w0, w1 >> 2);
  a[0] = (w0 << 2 & 0xfcfcfcfcu) ^ 0x80808080u;
  a[1] = (w1 << 2 & 0xfcfcfcfcu) ^ 0x80808080u;
  a[2] = (w2 << 2 & 0xfcfcfcfcu) ^ 0x80808080u;
  a[3] = (choose_bits(0xf0f0f0f0u, top, w2 >> 4) & 0xfcfcfcfcu) ^ 0x80808080u;
}

// One lane's sums: [0] row g, [1] row g + 8. The sums of the four lanes of a row make the result.
struct RowSums {
  float of[2] = {0, 0};
  __device__ __forceinline__ float total(int half) const {
    float sum = of[half];
    sum = __fadd_rn(sum, shuffle_xor(sum, 1));
    return __fadd_rn(sum, shuffle_xor(sum, 2));
  }
  // total(0) where t is even, total(1) where it is odd.
  __device__ __forceinline__ float own_total(int t) const {
    const bool upper = t % 2 != 0;
    float sum = upper ? of[1] : of[0];
    sum = __fadd_rn(sum, shuffle_xor(upper ? of[0] : of[1], 1));
    return __fadd_rn(sum, shuffle_xor(sum, 2));
  }
};

// `sum_a`, `sum_b`: integers.
__device__ __forceinline__ float q4_term(float scale_a, float scale_b, float x_a, float x_b,
                                         float sum_a, float sum_b) {
  const float first = __fmul_rn(__fmul_rn(scale_a, x_a), sum_a);
  return __fmaf_rn(__fmul_rn(scale_b, x_b), sum_b, first);
}
__device__ __forceinline__ float q4_minimum(float min_a, float min_b, float xs_a, float xs_b) {
  return __fmaf_rn(min_b, xs_b, __fmul_rn(min_a, xs_a));
}
__device__ __forceinline__ float q4_sum(std::uint32_t super, float term, float minimum, float sum) {
  sum = __fmaf_rn(half_bits(super & 0xffffu), term, sum);
  return __fmaf_rn(-half_bits(super >> 16), minimum, sum);
}

// What four times an integer sum is multiplied with: the levels that eight rows meet are four times
// themselves. The sum is below 2^24, so that four times it is a float exactly. (The factor is
// rounded to less than 24 bits below 2^-124, not 2^-126: for one row as for eight.)
static_assert(127 * 32 * 128 * 32 < 1 << 24);  // activation, level - 32, scale; columns
__device__ __forceinline__ float q6_factor(std::uint32_t supers, int half, float x) {
  return __fmul_rn(0.25f * half_bits((supers >> (16 * half)) & 0xffffu), x);
}

// What a lane reads of one row's super-block.
template <BlockType kType>
struct RowPart;
template <>
struct RowPart<BlockType::Q4_K> {
  uint2 levels;
  float4 factors;  // of two groups
};
template <>
struct RowPart<BlockType::Q6_K> {
  std::uint32_t levels[2];  // of each 128 columns
  float factors[2];
  int2 offsets[2];
};
// `read`: a T from a number of bytes behind the super-block's first.
template <BlockType kType, typename Read>
__device__ __forceinline__ RowPart<kType> row_part(int lane, Read read) {
  const int g = lane / 4, t = lane % 4;
  RowPart<kType> part;
  if constexpr (kType == BlockType::Q4_K) {
    read(lane * 8, part.levels);
    read(kSuperFactors + t * 16, part.factors);
  } else {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      read(c * 128 + g / 2 * 32 + t * 8 + g % 2 * 4, part.levels[c]);
      read(kSuperFactors + (4 * c + t) * 8, part.factors[c]);
      read(kSuperOffsets + (4 * c + t) * 8, part.offsets[c]);
    }
  }
  return part;
}

template <BlockType kType>
__device__ __forceinline__ void dot_super(const RawSuper& raw, const RowPart<kType>& row, int lane,
                                          RowSums& sums) {
  const int g = lane / 4;
  if constexpr (kType == BlockType::Q4_K) {
    const uint2 b = row.levels;
    const float4 x = row.factors;
    // Odd groups' levels are upper halves of bytes. What the lower ones add to them is taken off at
    // the end: an instruction less a word than masks.
    int low[4] = {kFloatMagic, kFloatMagic, kFloatMagic, kFloatMagic};
    int both[4] = {kFloatMagic, kFloatMagic, kFloatMagic, kFloatMagic};
    const auto add = [&](int (&to)[4], const std::uint32_t (&a)[4], int tile) {
      add_u8_k32(to, a, g / 2 == tile ? b.x : 0, g / 2 == tile ? b.y : 0);
    };
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) add(both, raw.q[tile], tile);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      std::uint32_t a[4];
      levels_q4(raw.q[tile], 0, a);
      add(low, a, tile);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SixBits s{raw.s[0], raw.s[1]};
      const float scale_a = s.number(2 * half), scale_b = s.number(4 + 2 * half, 4);
      const float min_a = s.number(1 + 2 * half), min_b = s.number(5 + 2 * half);
      const float even = magic_float(low[2 * half]);
      const float odd =
          __fadd_rn(__int_as_float(both[2 * half + 1]), -__int_as_float(low[2 * half + 1]));
      const float term = q4_term(scale_a, scale_b, x.x, x.z, even, odd);
      sums.of[half] = q4_sum(raw.d[half], term, q4_minimum(min_a, min_b, x.y, x.w), sums.of[half]);
    }
  } else {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const std::uint32_t b = row.levels[c];
      const float x = row.factors[c];
      const int2 start = row.offsets[c];
      int d[4] = {start.x, start.y, start.x, 4 * start.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t a[4];
        const int tile = 2 * c + i / 2, group = i % 2;
        levels_q6(raw.q[tile][2 * group], raw.q[tile][2 * group + 1], raw.x[tile][group], a);
        add_u8_k32(d, a, g == 2 * i ? b : 0, g == 2 * i + 1 ? b : 0);
      }
      d[3] >>= 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int whole = signed_level(raw.s[c], 2 * half) * d[2 * half] +
                          signed_level(raw.s[c], 2 * half + 1) * d[2 * half + 1];
        sums.of[half] = __fmaf_rn(q6_factor(raw.d[0], half, x), static_cast<float>(4 * whole),
                                  sums.of[half]);
      }
    }
  }
}
template <BlockType kType>
__device__ __forceinline__ void dot_super(const RawSuper& raw, const char* row, int lane,
                                          RowSums& sums) {
  const auto read = [&](int at, auto& to) {
    to = *reinterpret_cast<const std::remove_reference_t<decltype(to)>*>(row + at);
  };
  dot_super<kType>(raw, row_part<kType>(lane, read), lane, sums);
}
template <bool kSix>
__device__ __forceinline__ void dot_either(BlockType type, const RawSuper& raw, const char* row,
                                           int, int lane, RowSums& sums) {
  if (!kSix || type == BlockType::Q4_K)
    dot_super<BlockType::Q4_K>(raw, row, lane, sums);
  else
    dot_super<BlockType::Q6_K>(raw, row, lane, sums);
}

}  // namespace tessera::gpu
