// The matrix product in plain C++: 16 lanes as arrays, which any compiler can vectorise.
#include <cstring>

// Loops over arrays gain nothing from being unrolled, and cost the compiler minutes.
#define TESSERA_UNROLL
#include "device/cpu/matmul_loops.h"
#include "quant/half.h"

namespace tessera::cpu {
namespace {

struct Portable {
  struct I {
    std::uint32_t lane[16];
  };
  struct F {
    float lane[16];
  };
  static constexpr bool kWideUnsigned = true;
  static constexpr int kFewRows = 0;
  static constexpr int kInterleavedRows = 1;
  static constexpr int kPanelRows = 1;
  static constexpr int kDenseRows = 2;

  template <class Out, class Function>
  static TESSERA_INLINE Out each(Function&& function) {
    Out out;
    for (int i = 0; i < 16; ++i) out.lane[i] = function(i);
    return out;
  }

  static I load(const std::byte* from) {
    I out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }
  static void store_line(std::byte* to, I a) { std::memcpy(to, a.lane, sizeof(a.lane)); }
  static I zero() { return I{}; }
  static I splat(const std::int32_t* from) {
    return each<I>([&](int) { return static_cast<std::uint32_t>(*from); });
  }
  template <std::uint32_t kMask>
  static I mask(I a) {
    return each<I>([&](int i) { return a.lane[i] & kMask; });
  }
  template <std::uint32_t kBits>
  static I flip(I a) {
    return each<I>([&](int i) { return a.lane[i] ^ kBits; });
  }
  static I flip_signs(I a) { return flip<0x80808080u>(a); }
  static I or_(I a, I b) {
    return each<I>([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  template <int kBits>
  static I shl(I a) {
    return each<I>([&](int i) { return a.lane[i] << kBits; });
  }
  template <int kBits>
  static I shr(I a) {
    return each<I>([&](int i) { return a.lane[i] >> kBits; });
  }
  template <int kBits>
  static I sar(I a) {
    return each<I>([&](int i) {
      return static_cast<std::uint32_t>(static_cast<std::int32_t>(a.lane[i]) >> kBits);
    });
  }
  static I lookup(const void* table, I codes) {
    const auto* levels = static_cast<const std::uint8_t*>(table);
    return each<I>([&](int i) {
      std::uint32_t out = 0;
      for (unsigned byte = 0; byte < 32; byte += 8) {
        out |= std::uint32_t{levels[(codes.lane[i] >> byte) & 15u]} << byte;
      }
      return out;
    });
  }

  // Weights are unsigned bytes, q signed ones.
  template <int kWords, int kMax, int kRows>
  static void dot(const I* w, const std::int8_t* const* q, I* sums) {
    static_assert(kRows == 1);
    for (int word = 0; word < kWords; ++word) {
      for (unsigned b = 0; b < 4; ++b) {
        const std::int32_t factor = q[0][4 * word + static_cast<int>(b)];
        for (int i = 0; i < 16; ++i) {
          const auto weight = static_cast<std::int32_t>((w[word].lane[i] >> (8 * b)) & 255u);
          sums->lane[i] += static_cast<std::uint32_t>(weight * factor);
        }
      }
    }
  }

  static F zero_float() { return F{}; }
  static F splat(const float* from) {
    return each<F>([&](int) { return *from; });
  }
  static F load_float(const void* from) {
    F out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }
  static void store(float* to, F a) { std::memcpy(to, a.lane, sizeof(a.lane)); }
  static F to_float(I a) {
    return each<F>([&](int i) { return static_cast<float>(static_cast<std::int32_t>(a.lane[i])); });
  }
  static F negate(F a) {
    return each<F>([&](int i) { return -a.lane[i]; });
  }
  static F mul(F a, F b) {
    return each<F>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  // Two roundings: a fused one is a library call where the hardware has none.
  static F fma(F a, F b, F c) {
    return each<F>([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static F half_low(I a) {
    return each<F>(
        [&](int i) { return half_to_float(static_cast<std::uint16_t>(a.lane[i] & 0xffffu)); });
  }
  static F half_high(I a) {
    return each<F>(
        [&](int i) { return half_to_float(static_cast<std::uint16_t>(a.lane[i] >> 16)); });
  }
  static F half_at(const std::byte* from) {
    return each<F>([&](int i) { return load_half(from + 2 * i); });
  }
  static F bfloat_at(const std::byte* from) {
    return each<F>([&](int i) { return bf16_to_float(load_u16(from + 2 * i)); });
  }
  static I bytes_at(const std::byte* from) {
    return each<I>([&](int i) { return static_cast<std::uint32_t>(from[i]); });
  }
  // 2^(e - 128) of e in 0..255.
  static F exponent(I e) {
    return each<F>([&](int i) {
      const std::uint32_t value = e.lane[i];
      return std::bit_cast<float>(value < 2 ? 0x00200000u << value : (value - 1) << 23);
    });
  }

  static constexpr int kSquareWords = 4;
  // Not inlined: that gains nothing here, and would cost the compiler a dozen seconds.
  template <int kCount>
  __attribute__((noinline)) static void transpose(const std::byte* rows, std::int64_t stride,
                                                  I* words) {
    static_assert(kCount == kSquareWords);
    for (int row = 0; row < 16; ++row) {
      std::uint32_t four[4];
      std::memcpy(four, rows + row * stride, sizeof(four));
      for (int i = 0; i < 4; ++i) words[i].lane[row] = four[i];
    }
  }
};

}  // namespace

const MatmulKernels kMatmulPortable = make_kernels<Portable>(Isa::portable);

}  // namespace tessera::cpu
