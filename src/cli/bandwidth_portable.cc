#include <cstring>

#include "cli/bandwidth_kernels.h"

namespace tessera::cli {
namespace {

constexpr int kChains = 32;

std::uint64_t read(const std::byte* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t at = 0; at < bytes; at += sizeof(sums)) {
    std::uint64_t words[8];
    std::memcpy(words, data + at, sizeof(words));
    for (int i = 0; i < 8; ++i) sums[i] ^= words[i];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum ^= part;
  return sum;
}

float multiply_f32(std::int64_t rounds) {
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<float>(i);
  const volatile float source = 0.999f;
  const float factor = source;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (float& sum : sums) sum = sum * factor + factor;
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

}  // namespace

// Without vector instructions that are known to be there, int8 has no peak of its own.
SpeedKernels speed_kernels_portable() {
  return {read, multiply_f32, nullptr, 2.0 * kChains, 0.0};
}

}  // namespace tessera::cli
