// What a hostile or damaged file may try. Every refusal is a message; nothing may crash, hang or
// take memory that the file does not justify. Run these under the sanitizers.
#include <limits>

#include "gguf/gguf.h"
#include "gguf/test_file.h"

namespace tessera::gguf {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

// One of everything: scalars, a string, arrays of numbers, bools and strings, three tensors.
RawFile sample() {
  RawFile raw;
  raw.header(3, 8);
  raw.entry_u32("general.alignment", 32);
  raw.string("a.string").number(std::uint32_t{8}, "value type").string("hello");
  raw.string("a.float").number(std::uint32_t{6}, "value type").number(1.5f);
  raw.string("a.bool").number(std::uint32_t{7}, "value type").number(std::uint8_t{1}, "bool");
  raw.string("a.double").number(std::uint32_t{12}, "value type").number(2.5);
  raw.string("some.ints").number(std::uint32_t{9}, "value type");
  raw.number(std::uint32_t{5}, "element type").number(std::uint64_t{3}, "array count");
  for (int i = 0; i < 3; ++i) raw.number(i);
  raw.string("some.bools").number(std::uint32_t{9}, "value type");
  raw.number(std::uint32_t{7}, "element type").number(std::uint64_t{2}, "array count");
  raw.number(std::uint8_t{0}).number(std::uint8_t{1});
  raw.string("some.strings").number(std::uint32_t{9}, "value type");
  raw.number(std::uint32_t{8}, "element type").number(std::uint64_t{3}, "array count");
  raw.string("one").string("").string("three");
  raw.tensor("first", {32, 2}, 8, 0);
  raw.tensor("second", {8}, 0, 96);
  raw.tensor("third", {2, 2, 2, 2}, 1, 128);
  raw.pad().data(160);
  return raw;
}

// Reads everything that can be read; the sanitizers judge.
void use_everything(const File& file) {
  for (const Metadata::Entry& entry : file.metadata().entries()) {
    (void)entry.value.describe();
    (void)entry.value.as_i64().ok();
    (void)entry.value.as_u64().ok();
    (void)entry.value.as_f32().ok();
    (void)entry.value.as_bool().ok();
    (void)entry.value.as_string().ok();
    (void)entry.value.as_ints().ok();
    (void)entry.value.as_floats().ok();
    (void)entry.value.as_bools().ok();
    (void)entry.value.as_strings().ok();
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.bytes == 0) continue;
    std::vector<std::byte> copy(tensor.data, tensor.data + tensor.bytes);
    EXPECT_EQ(copy.size(), tensor.bytes);
  }
}

// The message of the refusal; empty if the bytes are accepted (and then used).
std::string refusal(std::span<const std::byte> bytes, OpenOptions options = {}) {
  // In a buffer of its own, so that reading past the end is seen.
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  const Result<File> file = File::parse(exact, options);
  if (!file) {
    EXPECT_FALSE(file.error().message.empty());
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    return file.error().message;
  }
  use_everything(*file);
  return "";
}

#define EXPECT_REFUSED(raw, text) \
  EXPECT_NE(refusal((raw).bytes()).find(text), std::string::npos) << refusal((raw).bytes())

TEST(Hostile, TheSampleItselfIsFine) {
  EXPECT_EQ(refusal(sample().bytes()), "");
}

TEST(Hostile, CutAtEveryByte) {
  const RawFile raw = sample();
  const std::size_t needed = raw.bytes().size();
  for (std::size_t n = 0; n < needed; ++n) {
    EXPECT_NE(refusal(std::span(raw.bytes()).first(n)), "") << n << " of " << needed;
  }
}

TEST(Hostile, ARealModelCutInItsFirstPages) {
  const std::vector<std::byte> bytes =
      read_bytes(std::string(TESSERA_SOURCE_DIR) + "/tests/data/golden/laguna-bf16.gguf");
  ASSERT_GT(bytes.size(), 4096u);
  for (std::size_t n = 0; n < 4096; ++n) {
    ASSERT_NE(refusal(std::span(bytes).first(n)), "") << n;
  }
  // One byte less than the last tensor needs; only padding may be missing.
  EXPECT_NE(refusal(std::span(bytes).first(bytes.size() - 64)), "");
}

TEST(Hostile, EveryFieldAtItsExtremes) {
  const RawFile raw = sample();
  for (const RawFile::Field& field : raw.fields()) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, kMax, kMax - 1, kMax - 7, kMax / 2,
          kMax / 2 + 1, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 62}) {
      for (const bool allow : {false, true}) {
        const std::string message = refusal(raw.with(field, value), {.allow_unknown_types = allow});
        const bool is_size = field.what.find("count") != std::string::npos ||
                             field.what.find("length") != std::string::npos;
        if (is_size && value > 100) {
          EXPECT_NE(message, "") << field.what << " at " << field.at << " = " << value;
        }
      }
    }
  }
}

TEST(Hostile, EveryByteOfTheHeaderChanged) {
  const RawFile raw = sample();
  std::vector<std::byte> bytes = raw.bytes();
  for (std::size_t i = 0; i < bytes.size() - 160; ++i) {
    const std::byte saved = bytes[i];
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      bytes[i] = static_cast<std::byte>(value);
      (void)refusal(bytes);
    }
    bytes[i] = saved;
  }
}

TEST(Hostile, MagicVersionAndByteOrder) {
  EXPECT_REFUSED(RawFile().number(std::uint32_t{0x46464547}).number(3), "not a GGUF file");
  EXPECT_REFUSED(RawFile().header(0, 0, 1), "version 1");
  EXPECT_REFUSED(RawFile().header(0, 0, 4), "version 4");
  EXPECT_REFUSED(RawFile().header(0, 0, 0), "version 0");
  EXPECT_REFUSED(RawFile().header(0, 0, 3u << 24), "big-endian");
  EXPECT_EQ(refusal(RawFile().header(0, 0, 2).pad().bytes()), "");
  EXPECT_EQ(refusal(RawFile().header(0, 0, 3).pad().bytes()), "");
}

TEST(Hostile, OnlyAFileWithoutTensorsMayEndBeforeThePadding) {
  EXPECT_EQ(refusal(RawFile().header(0, 1).entry_u32("k", 1).bytes()), "");
  EXPECT_REFUSED(RawFile().header(1, 0).tensor("t", {8}, 0, 0), "ends in the padding");
}

TEST(Hostile, Alignment) {
  for (const std::uint32_t alignment : {0u, 1u, 3u, 4u, 48u, 1u << 17, 1u << 31, 0xffffffffu}) {
    EXPECT_REFUSED(RawFile().header(0, 1).entry_u32("general.alignment", alignment).pad(64),
                   "general.alignment is");
  }
  EXPECT_REFUSED(RawFile().header(0, 1).string("general.alignment").number(8u).string("32").pad(),
                 "expected an integer");
  EXPECT_EQ(refusal(RawFile().header(0, 1).entry_u32("general.alignment", 64).pad(64).bytes()), "");
}

TEST(Hostile, Duplicates) {
  EXPECT_REFUSED(RawFile().header(0, 2).entry_u32("k", 1).entry_u32("k", 2).pad(), "appears twice");
  EXPECT_REFUSED(
      RawFile().header(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).pad().data(64),
      "tensor 't' appears twice");
}

TEST(Hostile, KeysAndNames) {
  EXPECT_REFUSED(RawFile().header(0, 1).entry_u32("", 1).pad().data(32), "key is empty");
  EXPECT_REFUSED(RawFile().header(0, 1).entry_u32(std::string(65537, 'k'), 1).pad(),
                 "at most 65536");
  const std::string longest(63, 'n'), too_long(64, 'n');
  EXPECT_EQ(refusal(RawFile().header(1, 0).tensor(longest, {8}, 0, 0).pad().data(32).bytes()), "");
  EXPECT_REFUSED(RawFile().header(1, 0).tensor(too_long, {8}, 0, 0).pad().data(32), "more than 63");
  EXPECT_REFUSED(RawFile().header(1, 0).tensor("", {8}, 0, 0).pad().data(32), "is empty");
  // Nothing from the file reaches a terminal as it is.
  EXPECT_REFUSED(RawFile().header(1, 0).tensor("\x1b[2J\n", {0}, 0, 0).pad(), "'\\x1b[2J\\x0a'");
}

TEST(Hostile, Values) {
  const auto entry = [](std::uint32_t type) {
    RawFile raw;
    raw.header(0, 1).string("k").number(type);
    return raw;
  };
  EXPECT_REFUSED(entry(13).number(std::uint64_t{0}), "value type 13 is unknown");
  EXPECT_REFUSED(entry(7).number(std::uint8_t{2}).pad(), "a bool holds 2");
  EXPECT_REFUSED(entry(9).number(9u).number(std::uint64_t{1}).pad(), "element type 9");
  EXPECT_REFUSED(entry(9).number(13u).number(std::uint64_t{1}).pad(), "element type 13");
  EXPECT_REFUSED(entry(9).number(10u).number(kMax / 8 + 2).data(64), "cannot be in");
  EXPECT_REFUSED(entry(9).number(8u).number(std::uint64_t{8}).data(64), "does not fit");
  EXPECT_REFUSED(entry(9).number(7u).number(std::uint64_t{2}).number(std::uint16_t{0x0300}).pad(),
                 "a bool holds 3");
}

TEST(Hostile, TensorTypes) {
  for (const std::uint32_t type : {4u, 31u, 36u, 41u, 999u, 0xffffffffu}) {
    const RawFile raw = RawFile().header(1, 0).tensor("t.weight", {256}, type, 0).pad().data(512);
    EXPECT_REFUSED(raw, fmt::format("tensor 't.weight': type unknown (id {}) is not", type));
    const Result<File> file = File::parse(raw.bytes(), {.allow_unknown_types = true});
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(static_cast<std::uint32_t>(file->tensors()[0].type), type);
    EXPECT_EQ(file->tensors()[0].bytes, 0u);
  }
  const RawFile grid = RawFile().header(1, 0).tensor("t.weight", {256}, 16, 0).pad().data(66);
  EXPECT_REFUSED(grid, "type IQ2_XXS (id 16) is not supported");
  const Result<File> file = File::parse(grid.bytes(), {.allow_unknown_types = true});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->tensors()[0].bytes, 66u);
}

TEST(Hostile, TensorShapes) {
  const auto shaped = [](std::vector<std::int64_t> ne, std::uint32_t type = 0) {
    RawFile raw;
    raw.header(1, 0).tensor("t", std::move(ne), type, 0).pad().data(256);
    return raw;
  };
  EXPECT_REFUSED(shaped({}), "0 dimensions");
  EXPECT_REFUSED(shaped({1, 1, 1, 1, 1}), "5 dimensions");
  EXPECT_REFUSED(shaped({0}), "dimension 0 is 0");
  EXPECT_REFUSED(shaped({8, -1}), "dimension 1 is -1");
  EXPECT_REFUSED(shaped({std::int64_t{1} << 62, 4}), "elements overflows");
  EXPECT_REFUSED(shaped({std::int64_t{1} << 62}), "bytes overflows");
  EXPECT_REFUSED(shaped({std::int64_t{1} << 61}), "past the end");
  EXPECT_REFUSED(shaped({std::int64_t{1} << 32, std::int64_t{1} << 32}), "elements overflows");
  EXPECT_REFUSED(shaped({std::int64_t{1} << 31, std::int64_t{1} << 31}), "bytes overflows");
  EXPECT_REFUSED(shaped({33}, 8), "not whole Q8_0 blocks");
  EXPECT_REFUSED(shaped({65}), "past the end");
}

TEST(Hostile, TensorOffsets) {
  const auto at = [](std::uint64_t offset) {
    RawFile raw;
    raw.header(1, 0).tensor("t", {8}, 0, offset).pad().data(64);
    return raw;
  };
  EXPECT_EQ(refusal(at(32).bytes()), "");
  EXPECT_REFUSED(at(8), "not a multiple of 32");
  EXPECT_REFUSED(at(64), "past the end");
  EXPECT_REFUSED(at(kMax - 31), "past the end");
  EXPECT_REFUSED(
      RawFile().header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).pad().data(64),
      "tensors 'a' and 'b' overlap");
  // Any order is fine as long as nothing overlaps.
  EXPECT_EQ(refusal(RawFile()
                        .header(2, 0)
                        .tensor("a", {8}, 0, 32)
                        .tensor("b", {8}, 0, 0)
                        .pad()
                        .data(64)
                        .bytes()),
            "");
}

}  // namespace
}  // namespace tessera::gguf
