// The matrix product for AVX-512 with VNNI.
#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 takes the "undefined" vectors inside its own intrinsics for reads of uninitialised ones.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "device/cpu/matmul_loops.h"

namespace tessera::cpu {
namespace {

struct Avx512 {
  using I = __m512i;
  using F = __m512;
  static constexpr bool kWideUnsigned = true;
  static constexpr int kFewRows = 4;
  static constexpr int kInterleavedRows = 4;
  static constexpr int kPanelRows = 8;
  static constexpr int kDenseRows = 6;

  static TESSERA_INLINE I load(const std::byte* from) { return _mm512_loadu_si512(from); }
  static TESSERA_INLINE void store_line(std::byte* to, I a) { _mm512_storeu_si512(to, a); }
  static TESSERA_INLINE I zero() { return _mm512_setzero_si512(); }
  static TESSERA_INLINE I splat(const std::int32_t* from) { return _mm512_set1_epi32(*from); }
  template <std::uint32_t kMask>
  static TESSERA_INLINE I mask(I a) {
    return _mm512_and_si512(a, _mm512_set1_epi32(static_cast<std::int32_t>(kMask)));
  }
  template <std::uint32_t kBits>
  static TESSERA_INLINE I flip(I a) {
    return _mm512_xor_si512(a, _mm512_set1_epi32(static_cast<std::int32_t>(kBits)));
  }
  static TESSERA_INLINE I flip_signs(I a) { return flip<0x80808080u>(a); }
  static TESSERA_INLINE I or_(I a, I b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static TESSERA_INLINE I shl(I a) {
    if constexpr (kBits == 0) return a;
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static TESSERA_INLINE I shr(I a) {
    if constexpr (kBits == 0) return a;
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  static TESSERA_INLINE I sar(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static TESSERA_INLINE I lookup(const void* table, I codes) {
    const __m128i levels = _mm_load_si128(static_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), codes);
  }

  template <int kWords, int kMax, int kRows>
  static TESSERA_INLINE void dot(const I* w, const std::int8_t* const* q, I* sums) {
    TESSERA_UNROLL
    for (int i = 0; i < kWords; ++i) {
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        std::int32_t four;
        __builtin_memcpy(&four, q[r] + 4 * i, sizeof(four));
        sums[r] = _mm512_dpbusd_epi32(sums[r], w[i], _mm512_set1_epi32(four));
      }
    }
  }

  static TESSERA_INLINE F zero_float() { return _mm512_setzero_ps(); }
  static TESSERA_INLINE F splat(const float* from) { return _mm512_set1_ps(*from); }
  static TESSERA_INLINE F load_float(const void* from) { return _mm512_loadu_ps(from); }
  static TESSERA_INLINE void store(float* to, F a) { _mm512_storeu_ps(to, a); }
  static TESSERA_INLINE F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static TESSERA_INLINE F negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static TESSERA_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static TESSERA_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static TESSERA_INLINE F half_low(I a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
  static TESSERA_INLINE F half_high(I a) { return half_low(shr<16>(a)); }
  static TESSERA_INLINE F half_at(const std::byte* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static TESSERA_INLINE F bfloat_at(const std::byte* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(shl<16>(_mm512_cvtepu16_epi32(bits)));
  }
  static TESSERA_INLINE I bytes_at(const std::byte* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // 2^(e - 128) of e in 0..255; the two smallest are subnormal.
  static TESSERA_INLINE F exponent(I e) {
    const I normal = shl<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
    const I tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_tiny, normal, tiny));
  }

  // Squares of 4 x 4 words in each quarter of four registers: word i of all rows to out[i].
  static TESSERA_INLINE void transpose_quarters(I a, I b, I c, I d, I* out) {
    const I ab01 = _mm512_unpacklo_epi32(a, b), ab23 = _mm512_unpackhi_epi32(a, b);
    const I cd01 = _mm512_unpacklo_epi32(c, d), cd23 = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab01, cd01);
    out[1] = _mm512_unpackhi_epi64(ab01, cd01);
    out[2] = _mm512_unpacklo_epi64(ab23, cd23);
    out[3] = _mm512_unpackhi_epi64(ab23, cd23);
  }
  // Four words of rows 0, 4, 8 and 12, eight of rows 0 and 4, so that squares leave the rows in
  // their order.
  static TESSERA_INLINE I four_rows(const std::byte* rows, std::int64_t stride) {
    const auto at = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
    };
    I v = _mm512_castsi128_si512(at(0));
    v = _mm512_inserti32x4(v, at(4), 1);
    v = _mm512_inserti32x4(v, at(8), 2);
    return _mm512_inserti32x4(v, at(12), 3);
  }
  static TESSERA_INLINE I two_rows(const std::byte* rows, std::int64_t stride) {
    const auto at = [&](int row) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + row * stride));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(at(0)), at(4), 1);
  }
  static constexpr int kSquareWords = 8;
  template <int kCount>
  static TESSERA_INLINE void transpose(const std::byte* rows, std::int64_t stride, I* words) {
    if constexpr (kCount == 4) {
      transpose_quarters(four_rows(rows, stride), four_rows(rows + stride, stride),
                         four_rows(rows + 2 * stride, stride), four_rows(rows + 3 * stride, stride),
                         words);
    } else {
      // Rows 0 to 7, then 8 to 15: each quarter is word i or i + 4 of four rows.
      I half[2][4];
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::byte* const from = rows + 8 * i * stride;
        transpose_quarters(two_rows(from, stride), two_rows(from + stride, stride),
                           two_rows(from + 2 * stride, stride), two_rows(from + 3 * stride, stride),
                           half[i]);
      }
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        words[i] = _mm512_shuffle_i32x4(half[0][i], half[1][i], 0x88);
        words[i + 4] = _mm512_shuffle_i32x4(half[0][i], half[1][i], 0xdd);
      }
    }
  }
};

}  // namespace

const MatmulKernels kMatmulAvx512 = make_kernels<Avx512>(Isa::avx512);

}  // namespace tessera::cpu
#endif
