// Random blocks. Levels are random bits; what is chosen is the scales, from the second moment of
// the levels, so that the values have the wanted standard deviation. Formats whose levels are not
// symmetric get their zero mean from the minimum (Q2_K, Q4_K, ...) or from a random sign of d.
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "quant/block_format.h"
#include "quant/block_layout.h"

namespace tessera {
namespace {

// 64 random bits for each value of a counter.
inline std::uint64_t mix(std::uint64_t counter) {
  std::uint64_t v = counter * 0x9e3779b97f4a7c15u;
  v = (v ^ (v >> 32)) * 0xd6e8feb86659fd93u;
  v = (v ^ (v >> 29)) * 0xd6e8feb86659fd93u;
  return v ^ (v >> 32);
}

// The constants of one run, made once.
struct Scale {
  float d = 0;             // before its random sign
  std::uint16_t bits = 0;  // of d
  std::uint16_t min_bits = 0;
  std::uint8_t e = 0;             // MXFP4
  std::uint64_t e_threshold = 0;  // next exponent if random bits are below
};

// `unit` is the root mean square of the values of a block with d = 1, `centre` the mean level that
// the minimum takes away.
Scale make_scale(float stddev, double unit, double centre = 0) {
  Scale scale;
  scale.bits = float_to_half(static_cast<float>(stddev / unit));
  scale.d = half_to_float(scale.bits);
  scale.min_bits = float_to_half(static_cast<float>(centre * scale.d));
  return scale;
}

// Root mean square of `levels` equally likely consecutive integers from `low`.
double uniform_rms(int low, int levels) {
  double sum = 0;
  for (int i = 0; i < levels; ++i) sum += double{1} * (low + i) * (low + i);
  return std::sqrt(sum / levels);
}

double table_rms(const std::array<std::int8_t, 16>& table) {
  double sum = 0;
  for (const int level : table) sum += level * level;
  return std::sqrt(sum / 16);
}

std::uint16_t with_sign(std::uint16_t bits, std::uint64_t r) {
  return static_cast<std::uint16_t>(bits ^ (r & 0x8000u));
}

// Each finish() gets a block full of random bytes and 64 more random bits, and sets the scales.
void finish(BlockQ4_0& block, const Scale& s, std::uint64_t r) {
  block.d.set_bits(with_sign(s.bits, r));
}
void finish(BlockQ5_0& block, const Scale& s, std::uint64_t r) {
  block.d.set_bits(with_sign(s.bits, r));
}
void finish(BlockQ8_0& block, const Scale& s, std::uint64_t r) {
  block.d.set_bits(with_sign(s.bits, r));
}
void finish(BlockQ3_K& block, const Scale& s, std::uint64_t r) {
  block.d.set_bits(with_sign(s.bits, r));
}
void finish(BlockIQ4_NL& block, const Scale& s, std::uint64_t r) {
  block.d.set_bits(with_sign(s.bits, r));
}

template <typename Block>
void set_d_and_negative_min(Block& block, const Scale& s) {
  block.d.set_bits(s.bits);
  block.m.set_bits(static_cast<std::uint16_t>(s.min_bits ^ 0x8000u));
}
void finish(BlockQ4_1& block, const Scale& s, std::uint64_t) {
  set_d_and_negative_min(block, s);
}
void finish(BlockQ5_1& block, const Scale& s, std::uint64_t) {
  set_d_and_negative_min(block, s);
}

// Scales 8..15, and the minimum's equal to them: dmin is `centre` times d.
constexpr int kLowScale = 8, kScales = 8;

void finish(BlockQ2_K& block, const Scale& s, std::uint64_t) {
  for (std::uint8_t& pair : block.scales) {
    const unsigned scale = kLowScale + pair % kScales;
    pair = static_cast<std::uint8_t>(scale | (scale << 4));
  }
  block.d.set_bits(s.bits);
  block.dmin.set_bits(s.min_bits);
}

template <typename Block>
void set_scales_and_mins(Block& block, const Scale& s, std::uint64_t r) {
  // Scales below 16 leave the high bits of the packed pairs at zero.
  for (unsigned j = 0; j < 4; ++j) {
    const unsigned low = kLowScale + ((r >> (3 * j)) % kScales);
    const unsigned high = kLowScale + ((r >> (3 * j + 12)) % kScales);
    block.scales[j] = block.scales[j + 4] = static_cast<std::uint8_t>(low);
    block.scales[j + 8] = static_cast<std::uint8_t>(high | (high << 4));
  }
  block.d.set_bits(s.bits);
  block.dmin.set_bits(s.min_bits);
}
void finish(BlockQ4_K& block, const Scale& s, std::uint64_t r) {
  set_scales_and_mins(block, s, r);
}
void finish(BlockQ5_K& block, const Scale& s, std::uint64_t r) {
  set_scales_and_mins(block, s, r);
}

void finish(BlockQ6_K& block, const Scale& s, std::uint64_t) {
  // Odd scales -15..15: never zero, and of zero mean.
  for (std::int8_t& scale : block.scales) scale = static_cast<std::int8_t>((scale >> 3) | 1);
  block.d.set_bits(s.bits);
}

void finish(BlockIQ4_XS& block, const Scale& s, std::uint64_t r) {
  // Stored six bits: 10 01xx is 4..7, its complement 01 10xx is -8..-5.
  const auto signs = static_cast<unsigned>(r & 0xff);
  unsigned high = 0;
  for (unsigned b = 0; b < 8; ++b) high |= (signs >> b & 1 ? 1u : 2u) << (2 * b);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned flip =
        (signs >> (2 * i) & 1 ? 0x0fu : 0u) | (signs >> (2 * i + 1) & 1 ? 0xf0u : 0u);
    block.scales_low[i] = static_cast<std::uint8_t>((0x44u | (block.scales_low[i] & 0x33u)) ^ flip);
  }
  block.scales_high = {static_cast<std::uint8_t>(high & 0xff),
                       static_cast<std::uint8_t>(high >> 8)};
  block.d.set_bits(with_sign(s.bits, r));
}

void finish(BlockMXFP4& block, const Scale& s, std::uint64_t r) {
  block.e = static_cast<std::uint8_t>(s.e + (r < s.e_threshold ? 1 : 0));
}

// Fills every byte of each block with random bits, then lets finish() set the scales. A block uses
// its own range of counters, so that blocks do not depend on each other.
template <typename Block>
void fill(std::uint64_t seed, std::int64_t first, std::int64_t count, const Scale& scale,
          std::byte* dst) {
  constexpr std::size_t kWords = (sizeof(Block) + 7) / 8;
  std::uint64_t counter = seed + static_cast<std::uint64_t>(first) * (kWords + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    std::array<std::uint64_t, kWords> words;
    for (std::size_t w = 0; w < kWords; ++w) words[w] = mix(counter + w);
    const std::uint64_t extra = mix(counter + kWords);
    counter += kWords + 1;
    Block block;
    std::memcpy(&block, words.data(), sizeof(block));
    finish(block, scale, extra);
    std::memcpy(dst, &block, sizeof(block));
    dst += sizeof(block);
  }
}

// Approximately normal: the sum of four uniform 16-bit numbers, a variance of (2^32 - 1) / 3.
float normal(std::uint64_t r, float unit) {
  const auto total = static_cast<std::int32_t>((r & 0xffff) + ((r >> 16) & 0xffff) +
                                               ((r >> 32) & 0xffff) + (r >> 48)) -
                     2 * 0xffff;
  return static_cast<float>(total) * unit;
}

template <typename T, typename Convert>
void fill_plain(std::uint64_t seed, std::int64_t first, std::int64_t count, float stddev,
                std::byte* dst, Convert convert) {
  const float unit = stddev / static_cast<float>(std::sqrt((65536.0 * 65536.0 - 1) / 3));
  const std::uint64_t counter = seed + static_cast<std::uint64_t>(first);
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = convert(normal(mix(counter + static_cast<std::uint64_t>(i)), unit));
    std::memcpy(dst + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

// The exponents e and e + 1 are mixed so that the mean square comes out right.
Scale make_mxfp4_scale(float stddev) {
  const double wanted = stddev / table_rms(kE2M1Levels);
  const int power = std::ilogb(wanted);
  const double ratio = std::ldexp(wanted, -power);  // in [1, 2)
  Scale scale;
  scale.e = static_cast<std::uint8_t>(power + 128);
  scale.e_threshold = static_cast<std::uint64_t>((ratio * ratio - 1) / 3 * 0x1p63) * 2;
  return scale;
}

}  // namespace

void random_blocks(BlockType type, std::uint64_t seed, std::int64_t first_block,
                   std::int64_t n_blocks, float stddev, std::byte* dst) {
  CHECK(stddev >= 1e-4f && stddev <= 1e2f, "standard deviation {}", stddev);
  CHECK(first_block >= 0 && n_blocks >= 0, "blocks {} + {}", first_block, n_blocks);
  const std::uint64_t start = mix(seed ^ 0x5eed5eed5eed5eedu);
  const double scales = uniform_rms(kLowScale, kScales);
  const auto run = [&]<typename Block>(const Scale& scale) {
    fill<Block>(start, first_block, n_blocks, scale, dst);
  };
  switch (type) {
    case BlockType::F32:
      return fill_plain<float>(start, first_block, n_blocks, stddev, dst,
                               [](float v) { return v; });
    case BlockType::F16:
      return fill_plain<std::uint16_t>(start, first_block, n_blocks, stddev, dst, float_to_half);
    case BlockType::BF16:
      return fill_plain<std::uint16_t>(start, first_block, n_blocks, stddev, dst, float_to_bf16);
    case BlockType::Q4_0:
      return run.operator()<BlockQ4_0>(make_scale(stddev, uniform_rms(-8, 16)));
    case BlockType::Q5_0:
      return run.operator()<BlockQ5_0>(make_scale(stddev, uniform_rms(-16, 32)));
    case BlockType::Q8_0:
      return run.operator()<BlockQ8_0>(make_scale(stddev, uniform_rms(-128, 256)));
    case BlockType::Q4_1:
      return run.operator()<BlockQ4_1>(make_scale(stddev, std::sqrt(255.0 / 12), 7.5));
    case BlockType::Q5_1:
      return run.operator()<BlockQ5_1>(make_scale(stddev, std::sqrt(1023.0 / 12), 15.5));
    case BlockType::Q2_K:
      return run.operator()<BlockQ2_K>(make_scale(stddev, scales * std::sqrt(15.0 / 12), 1.5));
    case BlockType::Q4_K:
      return run.operator()<BlockQ4_K>(make_scale(stddev, scales * std::sqrt(255.0 / 12), 7.5));
    case BlockType::Q5_K:
      return run.operator()<BlockQ5_K>(make_scale(stddev, scales * std::sqrt(1023.0 / 12), 15.5));
    case BlockType::Q3_K:
      return run.operator()<BlockQ3_K>(
          make_scale(stddev, uniform_rms(-32, 64) * uniform_rms(-4, 8)));
    case BlockType::Q6_K:
      return run.operator()<BlockQ6_K>(make_scale(stddev, std::sqrt(85.0) * uniform_rms(-32, 64)));
    case BlockType::IQ4_NL:
      return run.operator()<BlockIQ4_NL>(make_scale(stddev, table_rms(kNonlinearLevels)));
    case BlockType::IQ4_XS:
      return run.operator()<BlockIQ4_XS>(
          make_scale(stddev, std::sqrt(37.5) * table_rms(kNonlinearLevels)));
    case BlockType::MXFP4:
      return run.operator()<BlockMXFP4>(make_mxfp4_scale(stddev));
  }
  CHECK(false, "type id {} is not supported", static_cast<std::uint32_t>(type));
}

}  // namespace tessera
