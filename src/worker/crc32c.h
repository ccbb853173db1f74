// CRC-32C (Castagnoli: reflected polynomial 0x82f63b78, as in RFC 3720), for frames and the bytes
// of a model. It finds accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::worker {

// `before`: of the bytes that stand in front of these.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
// The same, as a machine without the instruction computes it.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace tessera::worker
