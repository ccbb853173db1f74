// How each block format looks to the product loops, over 16 rows at a time.
//
// Included by matmul_portable.cc, matmul_avx2.cc and matmul_avx512.cc only: everything here is
// local to the file that includes it, since each is compiled for other instructions. `S` is that
// file's vector type: 16 lanes, one per row; I holds 32-bit integers or 4 bytes each, F floats.
//
// A format is a struct that reads the scales of one block (begin) and then serves its runs of 32
// elements, `sub` = 0..kSubs-1:
//   weights<sub>(w)      eight words of unsigned weights, element 4i + b in byte b of w[i]
//   scales<sub>(s, bias) for 32 elements, or for each half of them if kHalves == 2:
//                        y = s * (n - 2^kOffsetLog2) + bias
// kOffsetLog2 < 0 means no offset, kBias false means no bias. kMax bounds the weights, so that an
// instruction set without a wide enough product knows what it can add up. All products of scales
// below are exact in f32. What the fields mean: the published GGUF block layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#define TESSERA_INLINE __attribute__((always_inline)) inline
// Before a loop over registers: GCC would otherwise keep them in memory and interchange loops.
#ifndef TESSERA_UNROLL
#define TESSERA_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tessera::cpu {
namespace {

inline constexpr int kLine = 64;

template <class S>
TESSERA_INLINE typename S::I line(const std::byte* lines, int index) {
  return S::load(lines + index * kLine);
}

template <class S, int kByte>
TESSERA_INLINE typename S::I unsigned_byte(typename S::I word) {
  return S::template mask<0xff>(S::template shr<8 * kByte>(word));
}
template <class S, int kByte>
TESSERA_INLINE typename S::I signed_byte(typename S::I word) {
  return S::template sar<24>(S::template shl<24 - 8 * kByte>(word));
}
// Bits 0..5 of the byte, with bit 5 as the sign.
template <class S, int kByte>
TESSERA_INLINE typename S::I signed_six(typename S::I word) {
  return S::template sar<26>(S::template shl<26 - 8 * kByte>(word));
}
// The low nibbles of each byte, or the high ones.
template <class S, int kHigh>
TESSERA_INLINE typename S::I nibbles(typename S::I word) {
  return S::template mask<0x0f0f0f0f>(S::template shr<4 * kHigh>(word));
}
// Bit kFrom of each byte moved to bit kTo, the others cleared.
template <class S, int kFrom, int kTo>
TESSERA_INLINE typename S::I move_bit(typename S::I word) {
  if constexpr (kFrom >= kTo) {
    return S::template mask<(0x01010101u << kTo)>(S::template shr<kFrom - kTo>(word));
  } else {
    return S::template mask<(0x01010101u << kTo)>(S::template shl<kTo - kFrom>(word));
  }
}
// Bits kFrom, kFrom + 1 of each byte moved to bits kTo, kTo + 1.
template <class S, int kFrom, int kTo>
TESSERA_INLINE typename S::I move_pair(typename S::I word) {
  if constexpr (kFrom >= kTo) {
    return S::template mask<(0x03030303u << kTo)>(S::template shr<kFrom - kTo>(word));
  } else {
    return S::template mask<(0x03030303u << kTo)>(S::template shl<kTo - kFrom>(word));
  }
}

// Calls f(Index<0>), f(Index<1>), ... f(Index<kCount - 1>).
template <int kValue>
struct Index {
  static constexpr int value = kValue;
};
template <int kCount, int kFrom = 0, class F>
TESSERA_INLINE void unroll(F&& f) {
  if constexpr (kFrom < kCount) {
    f(Index<kFrom>{});
    unroll<kCount, kFrom + 1>(f);
  }
}

// 32 elements as 16 bytes: low nibbles, then high nibbles.
template <class S>
TESSERA_INLINE void split_nibbles(const std::byte* lines, int first, typename S::I* w) {
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const typename S::I word = line<S>(lines, first + i);
    w[i] = nibbles<S, 0>(word);
    w[i + 4] = nibbles<S, 1>(word);
  }
}

// Formats of 32 elements with one scale. ------------------------------------------------------

template <class S>
struct FormatQ4_0 {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 1, kWords = 4, kTail = 2, kSpreadWord = -1;
  static constexpr int kHalves = 1, kOffsetLog2 = 3, kMax = 15;
  static constexpr bool kBias = false;
  F d;
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte*, const Tail& tail) {
    d = tail.half();
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 0, w);
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F*) const {
    s[0] = d;
  }
};

template <class S>
struct FormatQ4_1 {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 1, kWords = 5, kTail = 0, kSpreadWord = -1;
  static constexpr int kHalves = 1, kOffsetLog2 = -1, kMax = 15;
  static constexpr bool kBias = true;
  F d, m;
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail&) {
    d = S::half_low(line<S>(lines, 0));
    m = S::half_high(line<S>(lines, 0));
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 1, w);
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F* bias) const {
    s[0] = d;
    bias[0] = m;
  }
};

// Adds the fifth bits, which packing has spread: bit i of each byte belongs to word i.
template <class S>
TESSERA_INLINE void add_spread_bits(typename S::I high, typename S::I* w) {
  unroll<8>([&](auto i) __attribute__((always_inline)) {
    w[i.value] = S::or_(w[i.value], move_bit<S, i.value, 4>(high));
  });
}

template <class S>
struct FormatQ5_0 : FormatQ4_0<S> {
  using I = typename S::I;
  static constexpr int kWords = 5, kSpreadWord = 0, kOffsetLog2 = 4, kMax = 31;
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 1, w);
    add_spread_bits<S>(line<S>(lines, 0), w);
  }
};

template <class S>
struct FormatQ5_1 : FormatQ4_1<S> {
  using I = typename S::I;
  static constexpr int kWords = 6, kSpreadWord = 1, kMax = 31;
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 2, w);
    add_spread_bits<S>(line<S>(lines, 1), w);
  }
};

template <class S>
struct FormatQ8_0 : FormatQ4_0<S> {
  using I = typename S::I;
  static constexpr int kWords = 8, kOffsetLog2 = S::kWideUnsigned ? 7 : -1, kMax = 255;
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      w[i] = line<S>(lines, i);
      if constexpr (S::kWideUnsigned) w[i] = S::flip_signs(w[i]);
    }
  }
};

// 4-bit codes. The tables hold the levels plus the offset, so that they are unsigned, except where
// the instruction set multiplies signed bytes better (kWideUnsigned false).
alignas(16) constexpr std::uint8_t kNonlinearUnsigned[16] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr std::int8_t kNonlinearSigned[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                          1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr std::uint8_t kE2M1Unsigned[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                        16, 15, 14, 13, 12, 10, 8,  4};
template <class S>
TESSERA_INLINE const void* nonlinear_table() {
  if constexpr (S::kWideUnsigned) return kNonlinearUnsigned;
  return kNonlinearSigned;
}
template <class S>
TESSERA_INLINE void look_up(const void* table, typename S::I* w) {
  TESSERA_UNROLL
  for (int i = 0; i < 8; ++i) w[i] = S::lookup(table, w[i]);
}

template <class S>
struct FormatIQ4_NL : FormatQ4_0<S> {
  using I = typename S::I;
  static constexpr int kOffsetLog2 = S::kWideUnsigned ? 7 : -1, kMax = 255;
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 0, w);
    look_up<S>(nonlinear_table<S>(), w);
  }
};

template <class S>
struct FormatMXFP4 : FormatQ4_0<S> {
  using I = typename S::I;
  static constexpr int kTail = 1, kOffsetLog2 = 4, kMax = 28;
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte*, const Tail& tail) {
    this->d = tail.exponent();
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 0, w);
    look_up<S>(kE2M1Unsigned, w);
  }
};

// Formats of 256 elements with quantised scales. ------------------------------------------------

template <class S>
struct FormatQ4_K {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 8, kWords = 36, kTail = 0, kSpreadWord = -1;
  static constexpr int kHalves = 1, kOffsetLog2 = -1, kMax = 15;
  static constexpr bool kBias = true;
  F d, minus_dmin;
  I scale[2], min[2];  // bytes: subs 0..3 and 4..7
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail&) {
    const I heads = line<S>(lines, 0);
    d = S::half_low(heads);
    minus_dmin = S::negate(S::half_high(heads));
    const I s0 = line<S>(lines, 1), s1 = line<S>(lines, 2), s2 = line<S>(lines, 3);
    scale[0] = S::template mask<0x3f3f3f3f>(s0);
    min[0] = S::template mask<0x3f3f3f3f>(s1);
    scale[1] = S::or_(nibbles<S, 0>(s2), S::template mask<0x30303030>(S::template shr<2>(s0)));
    min[1] = S::or_(nibbles<S, 1>(s2), S::template mask<0x30303030>(S::template shr<2>(s1)));
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) w[i] = nibbles<S, kSub % 2>(line<S>(lines, 4 + kSub / 2 * 8 + i));
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F* bias) const {
    s[0] = S::mul(d, S::to_float(unsigned_byte<S, kSub % 4>(scale[kSub / 4])));
    bias[0] = S::mul(minus_dmin, S::to_float(unsigned_byte<S, kSub % 4>(min[kSub / 4])));
  }
};

template <class S>
struct FormatQ5_K : FormatQ4_K<S> {
  using I = typename S::I;
  static constexpr int kWords = 44, kMax = 31;
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      w[i] = S::or_(nibbles<S, kSub % 2>(line<S>(lines, 12 + kSub / 2 * 8 + i)),
                    move_bit<S, kSub, 4>(line<S>(lines, 4 + i)));
    }
  }
};

template <class S>
struct FormatQ6_K {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 8, kWords = 52, kTail = 2, kSpreadWord = -1;
  static constexpr int kHalves = 2, kOffsetLog2 = 5, kMax = 63;
  static constexpr bool kBias = false;
  F d;
  I scale[4];
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail& tail) {
    d = tail.half();
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) scale[i] = line<S>(lines, 48 + i);
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    constexpr int kPart = kSub % 4;  // which quarter of 128 elements
    constexpr int kLow = kSub / 4 * 16 + kPart % 2 * 8, kHigh = 32 + kSub / 4 * 8;
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      w[i] = S::or_(nibbles<S, kPart / 2>(line<S>(lines, kLow + i)),
                    move_pair<S, 2 * kPart, 4>(line<S>(lines, kHigh + i)));
    }
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F*) const {
    s[0] = S::mul(d, S::to_float(signed_byte<S, 2 * kSub % 4>(scale[kSub / 2])));
    s[1] = S::mul(d, S::to_float(signed_byte<S, 2 * kSub % 4 + 1>(scale[kSub / 2])));
  }
};

template <class S>
struct FormatQ3_K {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 8, kWords = 27, kTail = 2, kSpreadWord = -1;
  static constexpr int kHalves = 2, kOffsetLog2 = 2, kMax = 7;
  static constexpr bool kBias = false;
  F d;
  I scale[4];  // 6-bit bytes, made two's complement
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail& tail) {
    d = tail.half();
    const I s0 = line<S>(lines, 24), s1 = line<S>(lines, 25), s2 = line<S>(lines, 26);
    scale[0] = S::or_(nibbles<S, 0>(s0), move_pair<S, 0, 4>(s2));
    scale[1] = S::or_(nibbles<S, 0>(s1), move_pair<S, 2, 4>(s2));
    scale[2] = S::or_(nibbles<S, 1>(s0), move_pair<S, 4, 4>(s2));
    scale[3] = S::or_(nibbles<S, 1>(s1), move_pair<S, 6, 4>(s2));
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) scale[i] = S::template flip<0x20202020>(scale[i]);
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      w[i] = S::or_(move_pair<S, kSub % 4 * 2, 0>(line<S>(lines, 8 + kSub / 4 * 8 + i)),
                    move_bit<S, kSub, 2>(line<S>(lines, i)));
    }
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F*) const {
    s[0] = S::mul(d, S::to_float(signed_six<S, 2 * kSub % 4>(scale[kSub / 2])));
    s[1] = S::mul(d, S::to_float(signed_six<S, 2 * kSub % 4 + 1>(scale[kSub / 2])));
  }
};

template <class S>
struct FormatQ2_K {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 8, kWords = 21, kTail = 0, kSpreadWord = -1;
  static constexpr int kHalves = 2, kOffsetLog2 = -1, kMax = 3;
  static constexpr bool kBias = true;
  F d, minus_dmin;
  I scale[4];  // bytes: scale in the low nibble, min in the high one
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail&) {
    d = S::half_low(line<S>(lines, 20));
    minus_dmin = S::negate(S::half_high(line<S>(lines, 20)));
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) scale[i] = line<S>(lines, i);
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      w[i] = move_pair<S, kSub % 4 * 2, 0>(line<S>(lines, 4 + kSub / 4 * 8 + i));
    }
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F* bias) const {
    const I low = nibbles<S, 0>(scale[kSub / 2]), high = nibbles<S, 1>(scale[kSub / 2]);
    s[0] = S::mul(d, S::to_float(unsigned_byte<S, 2 * kSub % 4>(low)));
    s[1] = S::mul(d, S::to_float(unsigned_byte<S, 2 * kSub % 4 + 1>(low)));
    bias[0] = S::mul(minus_dmin, S::to_float(unsigned_byte<S, 2 * kSub % 4>(high)));
    bias[1] = S::mul(minus_dmin, S::to_float(unsigned_byte<S, 2 * kSub % 4 + 1>(high)));
  }
};

template <class S>
struct FormatIQ4_XS {
  using I = typename S::I;
  using F = typename S::F;
  static constexpr int kSubs = 8, kWords = 34, kTail = 0, kSpreadWord = -1;
  static constexpr int kHalves = 1, kOffsetLog2 = S::kWideUnsigned ? 7 : -1, kMax = 255;
  static constexpr bool kBias = false;
  F d;
  I heads, low;
  template <class Tail>
  TESSERA_INLINE void begin(const std::byte* lines, const Tail&) {
    heads = line<S>(lines, 0);
    d = S::half_low(heads);
    low = line<S>(lines, 1);
  }
  template <int kSub>
  TESSERA_INLINE void weights(const std::byte* lines, I* w) const {
    split_nibbles<S>(lines, 2 + 4 * kSub, w);
    look_up<S>(nonlinear_table<S>(), w);
  }
  template <int kSub>
  TESSERA_INLINE void scales(F* s, F*) const {
    const I low4 = S::template mask<15>(S::template shr<4 * kSub>(low));
    const I high2 = S::template mask<3>(S::template shr<16 + 2 * kSub>(heads));
    const I six = S::template flip<32>(S::or_(low4, S::template shl<4>(high2)));
    s[0] = S::mul(d, S::to_float(signed_six<S, 0>(six)));
  }
};

}  // namespace
}  // namespace tessera::cpu
