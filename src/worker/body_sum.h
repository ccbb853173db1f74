// The checksum of a frame's body, which travels in the frame's header: the lower half of XXH3 with
// 64 bits, and 0 of a body without bytes.
//
//   header.body_sum = body_sum(parts);   // of the sender's own memory
//
// It finds accidents. Who means it changes the sum with the body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::worker {

// A body in pieces, one after another.
using Parts = std::span<const std::span<const std::byte>>;

std::uint32_t body_sum(Parts parts);

}  // namespace tessera::worker
