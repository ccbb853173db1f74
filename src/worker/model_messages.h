// Bodies of the frames that carry a model to a worker that has no file of it.
//
//   worker                                     client
//   MODEL_INFO, empty                      ->
//                                          <-  MODEL_INFO: sizes of the model's files
//   MODEL_READ {part, offset, bytes, left} ->  several may be under way
//                                          <-  MODEL_DATA: those bytes, in the order of the reads
//   MODEL_READ of no bytes                 ->  that was all; what follows answers HELLO
//
// The worker asks, so that it alone decides what it needs, and takes no byte that it did not ask
// for. The client answers from its own file, within it.
//
// decode_* checks what can be checked without the model, as in messages.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "worker/wire.h"

namespace tessera::worker {

inline constexpr std::uint32_t kModelChunkBytes = 256 << 10;  // of one read
inline constexpr std::uint64_t kMaxModelFileBytes = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kMaxModelHeaderBytes = 256 << 20;  // of all files together

struct ModelPart {
  std::uint64_t file_bytes = 0;
  std::uint64_t header_bytes = 0;  // metadata and tensor table, up to the first tensor
  bool operator==(const ModelPart&) const = default;
};
struct ModelInfo {
  std::vector<ModelPart> parts;  // 1 to kMaxModelParts: a split model has several
  bool operator==(const ModelInfo&) const = default;
};
inline constexpr std::size_t kModelInfoFixedBytes = 8;
inline constexpr std::size_t kModelPartBytes = 16;

struct ModelRead {
  std::uint32_t part = 0;
  std::uint32_t bytes = 0;  // 1 to kModelChunkBytes; 0: that was all
  std::uint64_t offset = 0;
  std::uint64_t left = 0;  // bytes that will be asked for after these: for a person to see
  bool operator==(const ModelRead&) const = default;
};
inline constexpr std::size_t kModelReadBytes = 24;

std::vector<std::byte> encode(const ModelInfo& info);
std::vector<std::byte> encode(const ModelRead& read);

Result<ModelInfo> decode_model_info(std::span<const std::byte> body);
Result<ModelRead> decode_model_read(std::span<const std::byte> body);

}  // namespace tessera::worker
