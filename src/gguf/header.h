// Inside the gguf room: one GGUF file's header, parsed from bytes and validated.
//
// Everything a header says is compared with the number of bytes there are before it is used or
// memory is taken for it. Overlap and duplicates within the file are checked too; duplicate names
// across the files of a split model are File's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace tessera::gguf {

// What a reader accepts at most, and a writer so keeps to.
inline constexpr std::size_t kLongestTensorName = 63, kLongestKey = std::size_t{64} << 10;
inline constexpr std::uint32_t kDefaultAlignment = 32;

struct Header {
  std::uint32_t version = 0;
  Metadata metadata;
  std::vector<TensorInfo> tensors;  // data points into the bytes; shard is 0
};

Result<Header> parse_header(std::span<const std::byte> bytes, OpenOptions options);

}  // namespace tessera::gguf
