#if defined(__x86_64__)
#include <immintrin.h>

#include "cli/bandwidth_kernels.h"

namespace tessera::cli {
namespace {

constexpr int kChains = 16;

std::uint64_t read(const std::byte* data, std::size_t bytes) {
  __m512i sums[4] = {};
  for (std::size_t at = 0; at < bytes; at += 512)
    for (std::size_t i = 0; i < 8; ++i)
      sums[i % 4] = _mm512_xor_si512(sums[i % 4], _mm512_load_si512(data + at + 64 * i));
  const __m512i sum =
      _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, sum);
  return words[0];
}

float multiply_f32(std::int64_t rounds) {
  const volatile float source = 0.999f;
  const __m512 factor = _mm512_set1_ps(source);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = factor;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, factor);
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sums[i]);
  return _mm512_cvtss_f32(total);
}

// vpdpbusd: 64 products a step.
std::int32_t multiply_int8(std::int64_t rounds) {
  const volatile std::int8_t source = 3;
  const __m512i b = _mm512_set1_epi8(source);
  __m512i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  for (std::int64_t round = 0; round < rounds; ++round)
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, b, b);
  __m512i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_epi32(total, sums[i]);
  alignas(64) std::int32_t words[16];
  _mm512_store_si512(words, total);
  return words[0];
}

}  // namespace

SpeedKernels speed_kernels_avx512() {
  return {read, multiply_f32, multiply_int8, 2.0 * 16 * kChains, 2.0 * 64 * kChains};
}

}  // namespace tessera::cli
#endif
