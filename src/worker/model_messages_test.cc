#include "worker/model_messages.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

TEST(ModelMessages, RoundTrip) {
  const ModelInfo info{.parts = {{1000, 10}, {kMaxModelFileBytes, 1}}};
  EXPECT_EQ(*decode_model_info(encode(info)), info);
  const ModelRead read{.part = 3, .bytes = kModelChunkBytes, .offset = 1 << 20, .left = 9};
  EXPECT_EQ(*decode_model_read(encode(read)), read);
  EXPECT_EQ(encode(read).size(), kModelReadBytes);
  EXPECT_EQ(*decode_model_read(encode(ModelRead{})), ModelRead{});
}

TEST(ModelMessages, OfAnyOtherLengthAreRefused) {
  const std::vector<std::byte> info = encode(ModelInfo{.parts = {{1000, 10}, {20, 1}}});
  const std::vector<std::byte> read = encode(ModelRead{.bytes = 1});
  for (std::size_t n = 0; n < info.size(); ++n)
    EXPECT_FALSE(decode_model_info(std::span(info).first(n)).ok()) << n;
  for (std::size_t n = 0; n < read.size(); ++n)
    EXPECT_FALSE(decode_model_read(std::span(read).first(n)).ok()) << n;
}

TEST(ModelMessages, HostileSizes) {
  const std::uint64_t most = kMaxModelFileBytes;
  for (const ModelPart& part :
       {ModelPart{10, 11}, ModelPart{10, 0}, ModelPart{0, 0}, ModelPart{most + 1, 1},
        ModelPart{~0ull, 1}, ModelPart{most, kMaxModelHeaderBytes + 1}})
    EXPECT_FALSE(decode_model_info(encode(ModelInfo{.parts = {part}})).ok()) << part.file_bytes;
  EXPECT_FALSE(decode_model_info(encode(ModelInfo{})).ok());
  // Each has little enough metadata, together they have not.
  EXPECT_FALSE(
      decode_model_info(encode(ModelInfo{.parts = {3, {most, kMaxModelHeaderBytes / 2}}})).ok());
  EXPECT_FALSE(decode_model_info(encode(ModelInfo{.parts = {kMaxModelParts + 1, {10, 1}}})).ok());
  for (const ModelRead& read :
       {ModelRead{.part = kMaxModelParts}, ModelRead{.bytes = kModelChunkBytes + 1},
        ModelRead{.offset = most + 1}, ModelRead{.left = ~0ull}})
    EXPECT_FALSE(decode_model_read(encode(read)).ok());
}

// No file comes to an end that awaits none, and no more in a frame than was agreed.
TEST(ModelMessages, DataComesOnlyWhereItIsAwaited) {
  FrameHeader header{.op = Op::model_data, .body_bytes = 100};
  EXPECT_FALSE(check_frame(header, {}).ok());
  EXPECT_TRUE(check_frame(header, {.max_model_bytes = 100}).ok());
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = 99}).ok());
  header.body_bytes = 0;
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = 100}).ok());
  header.body_bytes = ~0ull;
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = kModelChunkBytes}).ok());
}

}  // namespace
}  // namespace tessera::worker
