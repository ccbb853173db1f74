// CRC-32C (Castagnoli: reflected polynomial 0x82f63b78, as in RFC 3720), for the headers of frames,
// which every version of the protocol must be able to read. Bodies have body_sum.h. It finds
// accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::worker {

std::uint32_t crc32c(std::span<const std::byte> bytes);
// The same, as a machine without the instruction computes it.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

}  // namespace tessera::worker
