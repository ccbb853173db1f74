#include "worker/model_messages.h"

#include "worker/byte_codec.h"

namespace tessera::worker {

std::vector<std::byte> encode(const ModelInfo& info) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u32(static_cast<std::uint32_t>(info.parts.size()));
  out.u32(0);
  for (const ModelPart& part : info.parts) {
    out.u64(part.file_bytes);
    out.u64(part.header_bytes);
  }
  return body;
}

Result<ModelInfo> decode_model_info(std::span<const std::byte> body) {
  ByteReader in(body);
  ModelInfo info;
  const std::uint32_t count = in.u32();
  in.u32();
  if (count < 1 || count > kMaxModelParts ||
      body.size() != kModelInfoFixedBytes + count * kModelPartBytes)
    return Error::make(ErrorCode::invalid, "malformed MODEL_INFO body");
  info.parts.resize(count);
  std::uint64_t headers = 0;
  for (ModelPart& part : info.parts) {
    part.file_bytes = in.u64();
    part.header_bytes = in.u64();
    if (part.header_bytes < 1 || part.header_bytes > part.file_bytes ||
        part.file_bytes > kMaxModelFileBytes)
      return Error::make(ErrorCode::invalid, "MODEL_INFO with a file of {} bytes, {} of header",
                         part.file_bytes, part.header_bytes);
    headers += part.header_bytes;
    if (headers > kMaxModelHeaderBytes)
      return Error::make(ErrorCode::invalid, "MODEL_INFO with more than {} bytes of metadata",
                         kMaxModelHeaderBytes);
  }
  return info;
}

std::vector<std::byte> encode(const ModelRead& read) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u32(read.part);
  out.u32(read.bytes);
  out.u64(read.offset);
  out.u64(read.left);
  return body;
}

Result<ModelRead> decode_model_read(std::span<const std::byte> body) {
  ByteReader in(body);
  ModelRead read;
  read.part = in.u32();
  read.bytes = in.u32();
  read.offset = in.u64();
  read.left = in.u64();
  if (!in.done() || read.part >= kMaxModelParts || read.bytes > kModelChunkBytes ||
      read.offset > kMaxModelFileBytes || read.left > kMaxModelParts * kMaxModelFileBytes)
    return Error::make(ErrorCode::invalid, "malformed MODEL_READ body");
  return read;
}

}  // namespace tessera::worker
