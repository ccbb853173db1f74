#include "worker/model_messages.h"

#include <gtest/gtest.h>

#include "worker/crc32c.h"

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

TEST(ModelMessages, DataHasItsChecksum) {
  std::vector<std::byte> bytes(1000, std::byte{7});
  const auto head = model_data_head(bytes);
  std::vector<std::byte> body(head.begin(), head.end());
  body.insert(body.end(), bytes.begin(), bytes.end());
  const Result<std::span<const std::byte>> back = decode_model_data(body);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::equal(back->begin(), back->end(), bytes.begin(), bytes.end()));
  for (const std::size_t at : {0u, 4u, 8u, 1007u}) {
    std::vector<std::byte> damaged = body;
    damaged[at] ^= std::byte{16};
    EXPECT_FALSE(decode_model_data(damaged).ok()) << at;
  }
  for (const std::size_t n : {0u, 7u, 8u, 1007u})
    EXPECT_FALSE(decode_model_data(std::span(body).first(n)).ok()) << n;
}

TEST(Checksum, IsTheSameByInstructionAndByTable) {
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  for (std::size_t n = 0; n <= bytes.size(); ++n)
    EXPECT_EQ(crc32c(std::span(bytes).first(n)), crc32c_by_table(std::span(bytes).first(n))) << n;
}

// No file comes to an end that awaits none, and no more in a frame than was agreed.
TEST(ModelMessages, DataComesOnlyWhereItIsAwaited) {
  FrameHeader header{.op = Op::model_data, .body_bytes = 100};
  EXPECT_FALSE(check_frame(header, {}).ok());
  EXPECT_TRUE(check_frame(header, {.max_model_bytes = 92}).ok());
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = 91}).ok());
  header.body_bytes = kModelDataFixedBytes;
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = 92}).ok());
  header.body_bytes = ~0ull;
  EXPECT_FALSE(check_frame(header, {.max_model_bytes = kModelChunkBytes}).ok());
}

}  // namespace
}  // namespace tessera::worker
