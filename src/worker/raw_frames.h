// Frames as a peer puts them together that keeps to nothing, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <span>

#include "worker/fd.h"
#include "worker/wire.h"

namespace tessera::worker {

using Raw = std::array<std::byte, kHeaderBytes>;

inline Raw encoded(const FrameHeader& header) {
  Raw raw;
  encode_header(header, raw);
  return raw;
}

inline void write_all(const Fd& fd, std::span<const std::byte> bytes) {
  ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

}  // namespace tessera::worker
