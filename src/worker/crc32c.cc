#include "worker/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "worker/byte_codec.h"

namespace tessera::worker {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;

// tables[k][b]: the remainder of byte b with k zero bytes behind it, so that eight bytes are eight
// independent look-ups.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t r = b;
    for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = r;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xffu];
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t by_table(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0u;
  while (bytes.size() >= 8) {
    const std::uint64_t word = load_le<std::uint64_t>(bytes.data()) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xffu];
    bytes = bytes.subspan(8);
  }
  for (const std::byte b : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(b)) & 0xffu];
  return ~crc;
}

#if defined(__x86_64__)
// The instruction is of this polynomial.
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes) {
  std::uint64_t crc = ~0u;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    crc = _mm_crc32_u64(crc, word);
  }
  auto last = static_cast<std::uint32_t>(crc);
  for (const std::byte b : bytes) last = _mm_crc32_u8(last, static_cast<unsigned char>(b));
  return ~last;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return by_instruction(bytes);
#endif
  return by_table(bytes);
}

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  return by_table(bytes);
}

}  // namespace tessera::worker
