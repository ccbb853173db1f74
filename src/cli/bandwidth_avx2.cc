#if defined(__x86_64__)
#include <immintrin.h>

#include "cli/bandwidth_kernels.h"

namespace tessera::cli {
namespace {

constexpr int kChains = 12;

std::uint64_t read(const std::byte* data, std::size_t bytes) {
  __m256i sums[4] = {};
  for (std::size_t at = 0; at < bytes; at += 512)
    for (std::size_t i = 0; i < 16; ++i)
      sums[i % 4] = _mm256_xor_si256(
          sums[i % 4], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0));
}

float multiply_f32(std::int64_t rounds) {
  const volatile float source = 0.999f;
  const __m256 factor = _mm256_set1_ps(source);
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = factor;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  __m256 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_ps(total, sums[i]);
  return _mm256_cvtss_f32(total);
}

// vpmaddubsw, vpmaddwd and an addition: 32 products a step.
std::int32_t multiply_int8(std::int64_t rounds) {
  const volatile std::int8_t source = 3;
  const __m256i ones = _mm256_set1_epi16(1), b = _mm256_set1_epi8(source);
  __m256i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_epi32(i);
  for (std::int64_t round = 0; round < rounds; ++round)
    for (__m256i& sum : sums)
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(sum, b), ones));
  __m256i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_epi32(total, sums[i]);
  return _mm256_extract_epi32(total, 0);
}

}  // namespace

SpeedKernels speed_kernels_avx2() {
  return {read, multiply_f32, multiply_int8, 2.0 * 8 * kChains, 2.0 * 32 * kChains};
}

}  // namespace tessera::cli
#endif
