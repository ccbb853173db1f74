// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
// a counter-based generator. The same key and counter always give the same numbers, so a draw needs
// no stream and does not depend on the draws before it.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                               std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// One draw a position of a stream.
struct Draw {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
};

// Uniform in [0, 1), 53 bits.
inline double uniform(const Draw& draw) {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(draw.position), static_cast<std::uint32_t>(draw.position >> 32),
       0, 0},
      {static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace tessera
