// The matrix product for AVX2 with FMA and F16C: 16 lanes as two registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/matmul_loops.h"

namespace tessera::cpu {
namespace {

struct Avx2 {
  struct I {
    __m256i a, b;
  };
  struct F {
    __m256 a, b;
  };
  // The product of unsigned and signed bytes adds pairs in 16 bits, which 8-bit unsigned weights
  // would overflow: those formats stay signed here.
  static constexpr bool kWideUnsigned = false;
  static constexpr int kFewRows = 2;
  static constexpr int kInterleavedRows = 1;
  static constexpr int kPanelRows = 4;
  static constexpr int kDenseRows = 2;

  static TESSERA_INLINE __m256i load_half_line(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static TESSERA_INLINE I load(const std::byte* from) {
    return {load_half_line(from), load_half_line(from + 32)};
  }
  static TESSERA_INLINE void store_line(std::byte* to, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), v.b);
  }
  static TESSERA_INLINE I both(__m256i v) { return {v, v}; }
  static TESSERA_INLINE I zero() { return both(_mm256_setzero_si256()); }
  static TESSERA_INLINE I splat(const std::int32_t* from) { return both(_mm256_set1_epi32(*from)); }
  template <std::uint32_t kMask>
  static TESSERA_INLINE I mask(I v) {
    const __m256i m = _mm256_set1_epi32(static_cast<std::int32_t>(kMask));
    return {_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
  }
  template <std::uint32_t kBits>
  static TESSERA_INLINE I flip(I v) {
    const __m256i m = _mm256_set1_epi32(static_cast<std::int32_t>(kBits));
    return {_mm256_xor_si256(v.a, m), _mm256_xor_si256(v.b, m)};
  }
  static TESSERA_INLINE I flip_signs(I v) { return flip<0x80808080u>(v); }
  static TESSERA_INLINE I or_(I v, I w) {
    return {_mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)};
  }
  template <int kBits>
  static TESSERA_INLINE I shl(I v) {
    if constexpr (kBits == 0) return v;
    return {_mm256_slli_epi32(v.a, kBits), _mm256_slli_epi32(v.b, kBits)};
  }
  template <int kBits>
  static TESSERA_INLINE I shr(I v) {
    if constexpr (kBits == 0) return v;
    return {_mm256_srli_epi32(v.a, kBits), _mm256_srli_epi32(v.b, kBits)};
  }
  template <int kBits>
  static TESSERA_INLINE I sar(I v) {
    return {_mm256_srai_epi32(v.a, kBits), _mm256_srai_epi32(v.b, kBits)};
  }
  static TESSERA_INLINE I lookup(const void* table, I codes) {
    const __m256i levels =
        _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(levels, codes.a), _mm256_shuffle_epi8(levels, codes.b)};
  }

  // Products of byte pairs, added in 16 bits.
  template <int kMax>
  static TESSERA_INLINE __m256i pairs(__m256i w, __m256i q) {
    if constexpr (kMax > 128) {
      return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    } else {
      return _mm256_maddubs_epi16(w, q);
    }
  }
  template <int kWords, int kMax, int kRows>
  static TESSERA_INLINE void dot(const I* w, const std::int8_t* const* q, I* sums) {
    static_assert(kRows == 1);
    // How many words' pairs of products 16 bits hold.
    constexpr int kPair = 2 * 127 * (kMax > 128 ? 128 : kMax);
    constexpr int kRun = kPair * 4 < 32768 ? 4 : kPair * 2 < 32768 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1);
    TESSERA_UNROLL
    for (int i = 0; i < kWords; i += kRun) {
      I sum;
      TESSERA_UNROLL
      for (int j = 0; j < kRun; ++j) {
        std::int32_t four;
        __builtin_memcpy(&four, q[0] + 4 * (i + j), sizeof(four));
        const __m256i factors = _mm256_set1_epi32(four);
        const I product{pairs<kMax>(w[i + j].a, factors), pairs<kMax>(w[i + j].b, factors)};
        sum = j == 0 ? product
                     : I{_mm256_add_epi16(sum.a, product.a), _mm256_add_epi16(sum.b, product.b)};
      }
      sums[0].a = _mm256_add_epi32(sums[0].a, _mm256_madd_epi16(sum.a, ones));
      sums[0].b = _mm256_add_epi32(sums[0].b, _mm256_madd_epi16(sum.b, ones));
    }
  }

  static TESSERA_INLINE F zero_float() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static TESSERA_INLINE F splat(const float* from) {
    return {_mm256_broadcast_ss(from), _mm256_broadcast_ss(from)};
  }
  static TESSERA_INLINE F load_float(const void* from) {
    const float* const floats = static_cast<const float*>(from);
    return {_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8)};
  }
  static TESSERA_INLINE void store(float* to, F v) {
    _mm256_storeu_ps(to, v.a);
    _mm256_storeu_ps(to + 8, v.b);
  }
  static TESSERA_INLINE F to_float(I v) {
    return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)};
  }
  static TESSERA_INLINE F negate(F v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(v.a, sign), _mm256_xor_ps(v.b, sign)};
  }
  static TESSERA_INLINE F mul(F v, F w) {
    return {_mm256_mul_ps(v.a, w.a), _mm256_mul_ps(v.b, w.b)};
  }
  static TESSERA_INLINE F fma(F v, F w, F c) {
    return {_mm256_fmadd_ps(v.a, w.a, c.a), _mm256_fmadd_ps(v.b, w.b, c.b)};
  }
  // The f16 in the low half of each word; the high halves are zero.
  static TESSERA_INLINE __m256 from_half(__m256i v) {
    const __m256i packed = _mm256_packus_epi32(v, v);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  static TESSERA_INLINE F half_low(I v) {
    const I low = mask<0xffff>(v);
    return {from_half(low.a), from_half(low.b)};
  }
  static TESSERA_INLINE F half_high(I v) {
    const I high = shr<16>(v);
    return {from_half(high.a), from_half(high.b)};
  }
  static TESSERA_INLINE __m128i load_16(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static TESSERA_INLINE F half_at(const std::byte* from) {
    return {_mm256_cvtph_ps(load_16(from)), _mm256_cvtph_ps(load_16(from + 16))};
  }
  static TESSERA_INLINE F bfloat_at(const std::byte* from) {
    const __m256i a = _mm256_cvtepu16_epi32(load_16(from));
    const __m256i b = _mm256_cvtepu16_epi32(load_16(from + 16));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  static TESSERA_INLINE I bytes_at(const std::byte* from) {
    const __m128i bytes = load_16(from);
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  // 2^(e - 128) of e in 0..255; the two smallest are subnormal.
  static TESSERA_INLINE __m256 exponent(__m256i e) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
  }
  static TESSERA_INLINE F exponent(I e) { return {exponent(e.a), exponent(e.b)}; }

  // Rows j and j + 4 side by side, so that squares of 4 x 4 words leave the rows in their order.
  static TESSERA_INLINE __m256i every_fourth_row(const std::byte* rows, std::int64_t stride) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(rows)),
                                   load_16(rows + 4 * stride), 1);
  }
  static TESSERA_INLINE void transpose_half(const std::byte* rows, std::int64_t stride,
                                            __m256i* words) {
    const __m256i a = every_fourth_row(rows, stride), b = every_fourth_row(rows + stride, stride);
    const __m256i c = every_fourth_row(rows + 2 * stride, stride);
    const __m256i d = every_fourth_row(rows + 3 * stride, stride);
    const __m256i ab01 = _mm256_unpacklo_epi32(a, b), ab23 = _mm256_unpackhi_epi32(a, b);
    const __m256i cd01 = _mm256_unpacklo_epi32(c, d), cd23 = _mm256_unpackhi_epi32(c, d);
    words[0] = _mm256_unpacklo_epi64(ab01, cd01);
    words[1] = _mm256_unpackhi_epi64(ab01, cd01);
    words[2] = _mm256_unpacklo_epi64(ab23, cd23);
    words[3] = _mm256_unpackhi_epi64(ab23, cd23);
  }
  static constexpr int kSquareWords = 4;
  template <int kCount>
  static TESSERA_INLINE void transpose(const std::byte* rows, std::int64_t stride, I* words) {
    static_assert(kCount == kSquareWords);
    __m256i low[4], high[4];
    transpose_half(rows, stride, low);
    transpose_half(rows + 8 * stride, stride, high);
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = {low[i], high[i]};
  }
};

}  // namespace

const MatmulKernels kMatmulAvx2 = make_kernels<Avx2>(Isa::avx2);

}  // namespace tessera::cpu
#endif
