// CRC-32C (Castagnoli: reflected polynomial 0x82f63b78, as in RFC 3720), for frame headers. It
// finds accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::worker {

std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace tessera::worker
