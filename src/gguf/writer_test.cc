#include "gguf/writer.h"

#include <signal.h>
#include <sys/resource.h>

#include <ctime>

#include "gguf/gguf.h"
#include "gguf/test_file.h"

namespace tessera::gguf {
namespace {

Writer create(const std::string& path, WriterOptions options = {}) {
  Result<Writer> out = Writer::create(path, options);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return *std::move(out);
}

File open(const std::string& path) {
  Result<File> file = File::open(path);
  EXPECT_TRUE(file.ok()) << file.error().message;
  return *std::move(file);
}

TEST(RoundTrip, EveryScalarType) {
  const ScratchFolder folder;
  Writer out = create(folder.file("m.gguf"));
  out.add("u8", std::uint8_t{200});
  out.add("i8", std::int8_t{-100});
  out.add("u16", std::uint16_t{60000});
  out.add("i16", std::int16_t{-30000});
  out.add("u32", std::uint32_t{4000000000u});
  out.add("i32", std::int32_t{-2000000000});
  out.add("u64", ~std::uint64_t{0});
  out.add("i64", std::int64_t{-1} << 62);
  out.add("f32", 1.25f);
  out.add("f64", 1e100);
  out.add("small f64", 0.5);
  out.add("true", true);
  out.add("string", "text");
  ASSERT_TRUE(out.finish().ok());

  const File file = open(folder.file("m.gguf"));
  const Metadata& m = file.metadata();
  EXPECT_EQ(m.entries().size(), 13u);
  EXPECT_EQ(*m.get_i64("u8"), 200);
  EXPECT_EQ(*m.get_i64("i8"), -100);
  EXPECT_EQ(*m.get_u32("u16"), 60000u);
  EXPECT_EQ(*m.get_i64("i16"), -30000);
  EXPECT_EQ(*m.get_u32("u32"), 4000000000u);
  EXPECT_EQ(*m.get_i64("i32"), -2000000000);
  EXPECT_EQ(*m.find("u64")->as_u64(), ~std::uint64_t{0});
  EXPECT_EQ(*m.get_i64("i64"), std::int64_t{-1} << 62);
  EXPECT_EQ(*m.get_f32("f32"), 1.25f);
  EXPECT_EQ(*m.get_f32("small f64"), 0.5f);
  EXPECT_EQ(*m.get_bool("true"), true);
  EXPECT_EQ(*m.get_string("string"), "text");
  EXPECT_EQ(m.find("f64")->type(), ValueType::f64);

  // Range and type errors name the key and what was found.
  EXPECT_EQ(m.get_i64("u64").error().message,
            "metadata key 'u64': 18446744073709551615 does not fit in 63 bits");
  EXPECT_EQ(m.get_u32("i8").error().message, "metadata key 'i8': -100 is not in 0..4294967295");
  EXPECT_FALSE(m.get_f32("f64").ok());
  EXPECT_EQ(m.get_f32("u32").error().message, "metadata key 'u32': expected a float, found u32");
  EXPECT_FALSE(m.get_bool("u8").ok());
  EXPECT_FALSE(m.get_string("u8").ok());
  EXPECT_EQ(m.get_u32("absent").error().code, ErrorCode::not_found);
  EXPECT_EQ(*m.get_u32_or("absent", 7), 7u);
  EXPECT_EQ(*m.get_i64_or("absent", -7), -7);
  EXPECT_EQ(*m.get_f32_or("absent", 0.5f), 0.5f);
  EXPECT_EQ(*m.get_bool_or("absent", true), true);
  EXPECT_EQ(*m.get_string_or("absent", "none"), "none");
  EXPECT_FALSE(m.get_u32_or("string", 7).ok());
}

TEST(RoundTrip, EveryArrayType) {
  const ScratchFolder folder;
  Writer out = create(folder.file("m.gguf"));
  out.add_array("u8", std::vector<std::uint8_t>{1, 2});
  out.add_array("i8", std::vector<std::int8_t>{-1, 2});
  out.add_array("u16", std::vector<std::uint16_t>{1, 65535});
  out.add_array("i16", std::vector<std::int16_t>{-1, 2});
  out.add_array("u32", std::vector<std::uint32_t>{0, 1});
  out.add_array("i32", std::vector<std::int32_t>{48, 64, 64, -64});
  out.add_array("u64", std::vector<std::uint64_t>{1, 2});
  out.add_array("i64", std::vector<std::int64_t>{-1, 2});
  out.add_array("f32", std::vector<float>{1.5f, 2.5f});
  out.add_array("f64", std::vector<double>{1.5, 2.5});
  out.add_array("bool", std::vector<bool>{true, false, true});
  out.add_array("strings", std::vector<std::string>{"a", "", std::string("\0b", 2)});
  out.add_array("none", std::vector<float>{});
  out.add("scalar", std::uint32_t{8});
  ASSERT_TRUE(out.finish().ok());

  const File file = open(folder.file("m.gguf"));
  const Metadata& m = file.metadata();
  using Ints = std::vector<std::int64_t>;
  EXPECT_EQ(*m.get_int_array("u8"), (Ints{1, 2}));
  EXPECT_EQ(*m.get_int_array("i8"), (Ints{-1, 2}));
  EXPECT_EQ(*m.get_int_array("u16"), (Ints{1, 65535}));
  EXPECT_EQ(*m.get_int_array("i16"), (Ints{-1, 2}));
  EXPECT_EQ(*m.get_int_array("u32"), (Ints{0, 1}));
  EXPECT_EQ(*m.get_int_array("i32"), (Ints{48, 64, 64, -64}));
  EXPECT_EQ(*m.get_int_array("u64"), (Ints{1, 2}));
  EXPECT_EQ(*m.get_int_array("i64"), (Ints{-1, 2}));
  EXPECT_EQ(*m.get_f32_array("f32"), (std::vector<float>{1.5f, 2.5f}));
  EXPECT_EQ(*m.get_f32_array("f64"), (std::vector<float>{1.5f, 2.5f}));
  EXPECT_EQ(*m.get_bool_array("bool"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*m.get_bool_array("u32"), (std::vector<bool>{false, true}));
  EXPECT_EQ(m.get_string_array("strings")->at(2), std::string_view("\0b", 2));
  EXPECT_TRUE(m.get_f32_array("none")->empty());

  EXPECT_EQ(*m.get_per_layer_int("i32", 4), (Ints{48, 64, 64, -64}));
  EXPECT_EQ(*m.get_per_layer_int("scalar", 3), (Ints{8, 8, 8}));
  EXPECT_EQ(m.get_per_layer_int("i32", 5).error().message,
            "metadata key 'i32': expected 5 entries or a single one, found an array of 4 i32");
  EXPECT_FALSE(m.get_int_array("scalar").ok());
  EXPECT_FALSE(m.get_bool_array("u16").ok());
  EXPECT_FALSE(m.get_string_array("f32").ok());
  EXPECT_EQ(*m.get_per_layer_f32("f32", 2), (std::vector<float>{1.5f, 2.5f}));

  // Copied as they stand, the values read the same from another file.
  Writer copy = create(folder.file("copy.gguf"));
  for (const Metadata::Entry& entry : m.entries()) copy.add(entry.key, entry.value);
  ASSERT_TRUE(copy.finish().ok());
  EXPECT_EQ(read_bytes(folder.file("copy.gguf")), read_bytes(folder.file("m.gguf")));
}

TEST(RoundTrip, EveryBlockTypeAndAlignment) {
  const ScratchFolder folder;
  for (const std::uint32_t alignment : {8u, 32u, 4096u}) {
    Writer out = create(folder.file("m.gguf"), {.alignment = alignment});
    for (const BlockType type : all_block_types()) {
      out.add_tensor(block_type_name(type), type, {256, 3, 1, 2});
    }
    std::vector<std::vector<std::byte>> written;
    for (const BlockType type : all_block_types()) {
      std::vector<std::byte> data(static_cast<std::size_t>(6 * row_bytes(type, 256)));
      random_blocks(type, 3, 0, 6 * 256 / block_format(type).elems, 0.1f, data.data());
      // In two pieces.
      ASSERT_TRUE(out.write(std::span(data).first(100)).ok());
      ASSERT_TRUE(out.write(std::span(data).subspan(100)).ok());
      written.push_back(std::move(data));
    }
    ASSERT_TRUE(out.finish().ok());
    const File file = open(folder.file("m.gguf"));
    ASSERT_EQ(file.tensors().size(), written.size());
    for (std::size_t i = 0; i < written.size(); ++i) {
      const TensorInfo& tensor = file.tensors()[i];
      EXPECT_EQ(tensor.type, all_block_types()[i]);
      EXPECT_EQ(tensor.ne, (std::array<std::int64_t, 4>{256, 3, 1, 2}));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % alignment, 0u);
      EXPECT_TRUE(std::equal(written[i].begin(), written[i].end(), tensor.data,
                             tensor.data + tensor.bytes));
    }
  }
}

TEST(Writer, MistakesAreReported) {
  const ScratchFolder folder;
  const auto finish_after = [&](auto&& mistake) {
    Writer out = create(folder.file("m.gguf"));
    mistake(out);
    const Status status = out.finish();
    return status ? std::string() : status.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(finish_after([](Writer& w) { w.add("k", true), w.add("k", true); }), "'k' is"));
  EXPECT_TRUE(has(finish_after([](Writer& w) { w.add_tensor("t", BlockType::Q4_K, {128}); }),
                  "not whole Q4_K blocks"));
  EXPECT_TRUE(has(finish_after([](Writer& w) { w.add_tensor("t", BlockType::F32, {0}); }),
                  "a dimension is 0"));
  EXPECT_TRUE(has(finish_after([](Writer& w) {
                    w.add_tensor("t", BlockType::F32, {std::int64_t{1} << 40, 1 << 22});
                  }),
                  "bytes"));
  EXPECT_TRUE(has(finish_after([](Writer& w) { w.add_tensor("t", BlockType::F32, {8}); }),
                  "tensor 't' has 32 bytes, only 0 were written"));
  EXPECT_TRUE(has(finish_after([](Writer& w) {
                    w.add_tensor("t", BlockType::F32, {8});
                    EXPECT_FALSE(w.write(std::vector<std::byte>(33)).ok());
                  }),
                  "tensor 't' has 32 bytes"));
  EXPECT_FALSE(Writer::create(folder.file("no/such/folder.gguf")).ok());
  EXPECT_FALSE(Writer::create(folder.file("m.gguf"), {.alignment = 24}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Writer, TheNameAppearsOnlyAtTheEnd) {
  const ScratchFolder folder;
  write_bytes(folder.file("m.gguf"), std::vector<std::byte>(5));
  {
    Writer out = create(folder.file("m.gguf"));
    out.add_tensor("t", BlockType::F32, {8});
    ASSERT_TRUE(out.write(std::vector<std::byte>(16)).ok());
  }
  EXPECT_EQ(read_bytes(folder.file("m.gguf")).size(), 5u);
  Writer out = create(folder.file("m.gguf"));
  Writer moved = std::move(out);
  ASSERT_TRUE(moved.finish().ok());
  EXPECT_FALSE(moved.finish().ok());
  EXPECT_EQ(read_bytes(folder.file("m.gguf")).size(), 32u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Writer, AFullDiskIsAnError) {
  const ScratchFolder folder;
  struct rlimit saved = {};
  getrlimit(RLIMIT_FSIZE, &saved);
  struct rlimit small = saved;
  small.rlim_cur = 1 << 20;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  {
    Writer out = create(folder.file("m.gguf"));
    out.add_tensor("t", BlockType::F32, {1 << 20});
    const std::vector<std::byte> data(4 << 20);
    const Status status = out.write(data);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::io);
    EXPECT_FALSE(out.finish().ok());
  }
  setrlimit(RLIMIT_FSIZE, &saved);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Metadata, ALargeVocabularyIsReadQuickly) {
  const ScratchFolder folder;
  std::vector<std::string> tokens;
  for (int i = 0; i < 250000; ++i) tokens.push_back("token" + std::to_string(i));
  Writer out = create(folder.file("m.gguf"));
  out.add_array("tokenizer.ggml.tokens", tokens);
  ASSERT_TRUE(out.finish().ok());
  // Of the processor's time, since the machine may do other things.
  const std::clock_t start = std::clock();
  const File file = open(folder.file("m.gguf"));
  const auto read = file.metadata().get_string_array("tokenizer.ggml.tokens");
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), tokens.size());
  EXPECT_EQ(read->back(), tokens.back());
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
  EXPECT_LT(seconds, 1.0);  // a few milliseconds; slack for sanitizers
}

}  // namespace
}  // namespace tessera::gguf
