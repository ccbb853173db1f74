#include "worker/int16_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace tessera::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are copied as they lie");

// Of the exponents, so that 2^exponent and its inverse are normal numbers.
constexpr std::int32_t kLeast = -126;
constexpr std::int32_t kMost = 113;  // of the largest f32
constexpr std::int16_t kNotFinite = std::numeric_limits<std::int16_t>::max();
constexpr std::int32_t kBias = 127;  // of an f32's exponent
constexpr float kToInteger =
    12582912.0f;  // 1.5 * 2^23: its last bit is 1, so a sum with it is rounded

float power_of_two(std::int32_t exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + kBias) << 23);
}

std::int16_t exponent_of(std::span<const float> values) {
  std::uint32_t most = 0;
  for (const float value : values)
    most = std::max(most, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  const auto biased = static_cast<std::int32_t>(most >> 23);
  if (biased == 255) return kNotFinite;
  return static_cast<std::int16_t>(std::max(biased - kBias - 14, kLeast));
}

}  // namespace

void pack_int16(std::span<const float> values, std::span<std::byte> out) {
  CHECK(out.size() == int16_bytes(values.size()));
  std::byte* to = out.data();
  for (std::size_t i = 0; i < values.size(); i += kInt16Block) {
    const auto block = values.subspan(i, std::min<std::size_t>(kInt16Block, values.size() - i));
    std::int16_t packed[1 + kInt16Block] = {exponent_of(block)};
    if (packed[0] != kNotFinite) {
      const float scale = power_of_two(-packed[0]);
      for (std::size_t j = 0; j < block.size(); ++j) {
        const auto rounded = std::bit_cast<std::int32_t>(block[j] * scale + kToInteger) -
                             std::bit_cast<std::int32_t>(kToInteger);
        packed[1 + j] = static_cast<std::int16_t>(std::clamp(rounded, -32767, 32767));
      }
    }
    const std::size_t bytes = int16_bytes(block.size());
    std::memcpy(to, packed, bytes);
    to += bytes;
  }
}

void unpack_int16(std::span<const std::byte> bytes, std::span<float> out) {
  CHECK(bytes.size() == int16_bytes(out.size()));
  const std::byte* from = bytes.data();
  for (std::size_t i = 0; i < out.size(); i += kInt16Block) {
    const auto block = out.subspan(i, std::min<std::size_t>(kInt16Block, out.size() - i));
    std::int16_t packed[1 + kInt16Block];
    const std::size_t size = int16_bytes(block.size());
    std::memcpy(packed, from, size);
    from += size;
    const bool finite = packed[0] >= kLeast && packed[0] <= kMost;
    const float step = finite ? power_of_two(packed[0]) : std::numeric_limits<float>::quiet_NaN();
    for (std::size_t j = 0; j < block.size(); ++j)
      block[j] = static_cast<float>(std::max<std::int16_t>(packed[1 + j], -32767)) * step;
  }
}

}  // namespace tessera::worker
