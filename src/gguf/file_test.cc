#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../tests/golden_data.h"
#include "gguf/gguf.h"
#include "gguf/split_name.h"
#include "gguf/test_file.h"
#include "gguf/writer.h"

namespace tessera::gguf {
namespace {

std::string golden(const std::string& name) {
  return std::string(TESSERA_SOURCE_DIR) + "/tests/data/golden/" + name + "-bf16.gguf";
}

// The `index`-th of `count` shards with one tensor of 4096 floats.
void write_shard(const std::string& path, int index, int count, int total,
                 const std::string& tensor) {
  Result<Writer> out = Writer::create(path);
  ASSERT_TRUE(out.ok()) << out.error().message;
  if (index == 0) out->add("general.architecture", "qwen3");
  out->add("split.no", static_cast<std::uint16_t>(index));
  out->add("split.count", static_cast<std::uint16_t>(count));
  out->add("split.tensors.count", std::int32_t{total});
  out->add_tensor(tensor, BlockType::F32, {4096});
  const std::vector<float> data(4096, static_cast<float>(index));
  ASSERT_TRUE(out->write(std::as_bytes(std::span(data))).ok());
  ASSERT_TRUE(out->finish().ok());
}

std::string open_error(const std::string& path) {
  const Result<File> file = File::open(path);
  return file ? "" : file.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(GoldenFiles, OpenAndHoldFiniteWeights) {
  for (const char* name : {"gemma4", "gemma4moe", "laguna", "qwen3", "qwen35", "qwen35moe"}) {
    const Result<File> file = File::open(golden(name));
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->version(), 3u);
    const auto architecture = file->metadata().get_string("general.architecture");
    ASSERT_TRUE(architecture.ok()) << architecture.error().message;
    EXPECT_TRUE(std::string(name).starts_with(*architecture)) << *architecture;
    EXPECT_GT(file->tensors().size(), 20u);
    for (const TensorInfo& tensor : file->tensors()) {
      EXPECT_EQ(file->find_tensor(tensor.name), &tensor);
      std::vector<float> row(static_cast<std::size_t>(tensor.ne[0]));
      dequantize_row(tensor.type, tensor.data, tensor.ne[0], row.data());
      for (const float v : row) ASSERT_TRUE(std::isfinite(v)) << tensor.name;
      file->will_need(tensor);
    }
    EXPECT_EQ(file->find_tensor("no such tensor"), nullptr);
    EXPECT_TRUE(file->check_intact().ok());
  }
}

TEST(GoldenFiles, AnswersHaveTheDocumentedShapes) {
  for (const char* name : {"gemma4", "gemma4moe", "laguna", "qwen3", "qwen35", "qwen35moe"}) {
    const GoldenData data =
        GoldenData::load(fmt::format("{}/tests/data/golden/{}.bin", TESSERA_SOURCE_DIR, name));
    EXPECT_EQ(data.ints("p300_ids").size(), 300u);
    EXPECT_EQ(data.floats("p300_logits").size(), 300u * 512u);
    EXPECT_EQ(data.ints("greedy_from_p33").size(), 24u);
    ASSERT_EQ(data.shape("p33_hidden").size(), 3u);
    EXPECT_EQ(data.shape("p33_hidden")[1], 33);
    // The first greedy token is the best one after the last token of the prompt.
    const auto last = data.floats("p33_logits").last(512);
    EXPECT_EQ(std::max_element(last.begin(), last.end()) - last.begin(),
              data.ints("greedy_from_p33")[0]);
  }
}

TEST(Open, SaysWhatIsWrong) {
  const ScratchFolder folder;
  EXPECT_TRUE(contains(open_error(folder.file("none.gguf")), "none.gguf: cannot open"));
  EXPECT_TRUE(contains(open_error(folder.path().string()), "not a regular file"));
  write_bytes(folder.file("empty.gguf"), {});
  EXPECT_TRUE(contains(open_error(folder.file("empty.gguf")), "the file is empty"));
  ASSERT_EQ(mkfifo(folder.file("pipe.gguf").c_str(), 0600), 0);
  EXPECT_TRUE(contains(open_error(folder.file("pipe.gguf")), "not a regular file"));
}

TEST(Open, AFileCanBeMoved) {
  Result<File> opened = File::open(golden("qwen3"));
  ASSERT_TRUE(opened.ok());
  const std::size_t count = opened->tensors().size();
  File file = *std::move(opened);
  File other = std::move(file);
  file = std::move(other);
  EXPECT_EQ(file.tensors().size(), count);
  EXPECT_NE(file.find_tensor("token_embd.weight"), nullptr);
  EXPECT_TRUE(file.check_intact().ok());
}

TEST(Release, PagesComeBackWithTheSameBytes) {
  const Result<File> file = File::open(golden("qwen3"));
  ASSERT_TRUE(file.ok());
  const TensorInfo* tensor = file->find_tensor("token_embd.weight");
  ASSERT_NE(tensor, nullptr);
  const std::vector<std::byte> before(tensor->data, tensor->data + tensor->bytes);
  file->release(*tensor, 0, tensor->bytes);
  file->release(*tensor, 100, 50);
  const std::vector<std::byte> after(tensor->data, tensor->data + tensor->bytes);
  EXPECT_EQ(before, after);
}

TEST(Split, NamesAreParsedAndMade) {
  const auto name = SplitName::of("/models/a-b-00002-of-00010.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->index, 1);
  EXPECT_EQ(name->count, 10);
  EXPECT_EQ(name->path(9), "/models/a-b-00010-of-00010.gguf");
  for (const char* other : {"a.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf",
                            "a-0001-of-0002.gguf", "a-00001-of-0000x.gguf", "a-00001_of-00002.gguf",
                            "-1-of-2.gguf", "a-+0001-of-00002.gguf", ""}) {
    EXPECT_FALSE(SplitName::of(other).has_value()) << other;
  }
}

TEST(Split, AnyShardOpensAll) {
  const ScratchFolder folder;
  for (int i = 0; i < 3; ++i) {
    write_shard(folder.file(fmt::format("m-0000{}-of-00003.gguf", i + 1)), i, 3, 3,
                fmt::format("t{}", i));
  }
  for (int i = 0; i < 3; ++i) {
    const Result<File> file = File::open(folder.file(fmt::format("m-0000{}-of-00003.gguf", i + 1)));
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->shard_count(), 3);
    EXPECT_TRUE(file->metadata().contains("general.architecture"));
    ASSERT_EQ(file->tensors().size(), 3u);
    for (int t = 0; t < 3; ++t) {
      const TensorInfo* tensor = file->find_tensor(fmt::format("t{}", t));
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->shard, t);
      float value = -1;
      dequantize_row(BlockType::F32, tensor->data, 1, &value);
      EXPECT_EQ(value, static_cast<float>(t));
    }
  }
}

TEST(Split, DisagreementsAreRefused) {
  const ScratchFolder folder;
  const std::string first = folder.file("m-00001-of-00002.gguf");
  const std::string second = folder.file("m-00002-of-00002.gguf");
  write_shard(first, 0, 2, 2, "a");
  EXPECT_TRUE(contains(open_error(first), "m-00002-of-00002.gguf: cannot open"));
  write_shard(second, 1, 2, 2, "a");
  EXPECT_TRUE(contains(open_error(first), "tensor 'a' appears twice (also in"));
  write_shard(second, 0, 2, 2, "b");
  EXPECT_TRUE(contains(open_error(first), "metadata says shard 1 of 2, its name says shard 2"));
  write_shard(second, 1, 3, 2, "b");
  EXPECT_TRUE(contains(open_error(first), "metadata says shard 2 of 3"));
  write_shard(second, 1, 2, 5, "b");
  EXPECT_TRUE(contains(open_error(first), "split.tensors.count is 5 here and 2"));
  write_shard(first, 0, 2, 5, "a");
  EXPECT_TRUE(contains(open_error(first), "hold 2 tensors, split.tensors.count is 5"));
  write_shard(folder.file("alone.gguf"), 0, 2, 2, "a");
  EXPECT_TRUE(contains(open_error(folder.file("alone.gguf")), "must end in -00001-of-00002.gguf"));
  write_shard(folder.file("wild.gguf"), 7, 2, 2, "a");
  EXPECT_TRUE(contains(open_error(folder.file("wild.gguf")), "split.no 7"));
}

TEST(Shrinking, ReadsAsZerosAndIsReported) {
  const ScratchFolder folder;
  const std::string path = folder.file("m.gguf");
  Result<Writer> out = Writer::create(path);
  ASSERT_TRUE(out.ok());
  constexpr std::int64_t kFloats = 1 << 18;
  out->add("general.name", "shrinks");
  out->add_tensor("t", BlockType::F32, {kFloats});
  const std::vector<float> data(kFloats, 1.0f);
  ASSERT_TRUE(out->write(std::as_bytes(std::span(data))).ok());
  ASSERT_TRUE(out->finish().ok());

  const Result<File> file = File::open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->check_intact().ok());
  ASSERT_EQ(truncate(path.c_str(), 4096), 0);
  const TensorInfo& tensor = file->tensors()[0];
  std::vector<float> row(kFloats);
  dequantize_row(tensor.type, tensor.data, kFloats, row.data());
  EXPECT_EQ(row.back(), 0.0f);
  const Status status = file->check_intact();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::io);
  EXPECT_TRUE(contains(status.error().message, "m.gguf: the file shrank while it was being read"));

  // Even a file that grew back cannot hide it, and metadata that is gone stays harmless.
  ASSERT_EQ(truncate(path.c_str(), 2 << 20), 0);
  EXPECT_FALSE(file->check_intact().ok());
  (void)file->metadata().get_string("general.name").ok();
}

// --- Files that this process fills ---

// An unlinked copy of a file, in memory.
int memory_file(const std::string& path) {
  const std::vector<std::byte> bytes = read_bytes(path);
  const int fd = memfd_create("gguf-test", MFD_CLOEXEC);
  EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return fd;
}

TEST(OwnFiles, AreReadFromTheirDescriptorsAndGivenBackForGood) {
  const Result<File> original = File::open(golden("qwen3"));
  ASSERT_TRUE(original.ok());
  const int fd = memory_file(golden("qwen3"));
  const OwnPart part{.name = "mine", .descriptor = fd, .header_bytes = original->header_bytes(0)};
  const Result<File> file = File::adopt({&part, 1});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->path(), "mine");
  ASSERT_EQ(file->tensors().size(), original->tensors().size());
  const TensorInfo* largest = &file->tensors()[0];
  for (const TensorInfo& tensor : file->tensors())
    if (tensor.bytes > largest->bytes) largest = &tensor;
  EXPECT_EQ(std::memcmp(largest->data, original->find_tensor(largest->name)->data, largest->bytes),
            0);
  struct stat before = {}, after = {};
  ASSERT_EQ(fstat(fd, &before), 0);
  file->drop_pages(*largest, 0, largest->bytes);
  EXPECT_EQ(std::memcmp(largest->data, original->find_tensor(largest->name)->data, largest->bytes),
            0);
  file->release(*largest, 0, largest->bytes);
  ASSERT_EQ(fstat(fd, &after), 0);
  EXPECT_LT(after.st_blocks, before.st_blocks);
  EXPECT_EQ(largest->data[largest->bytes / 2], std::byte{0});
  EXPECT_TRUE(file->check_intact().ok());
  close(fd);
}

TEST(OwnFiles, MetadataEndsWhereItWasSaidTo) {
  const Result<File> original = File::open(golden("qwen3"));
  ASSERT_TRUE(original.ok());
  const int fd = memory_file(golden("qwen3"));
  for (const std::uint64_t bytes : {std::uint64_t{8}, original->header_bytes(0) / 2}) {
    const OwnPart part{.name = "mine", .descriptor = fd, .header_bytes = bytes};
    const Result<File> file = File::adopt({&part, 1});
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::invalid);
  }
  close(fd);
}

TEST(OwnFiles, AreAllOfTheShardsInOrder) {
  const ScratchFolder folder;
  const SplitName name{folder.file("m"), 0, 2};
  for (int i = 0; i < 2; ++i) write_shard(name.path(i), i, 2, 2, i == 0 ? "a" : "b");
  const OwnPart first{.name = "first", .descriptor = memory_file(name.path(0))};
  const OwnPart second{.name = "second", .descriptor = memory_file(name.path(1))};
  const auto adopt = [](std::vector<OwnPart> parts) { return File::adopt(parts); };
  const Result<File> both = adopt({first, second});
  ASSERT_TRUE(both.ok()) << both.error().message;
  EXPECT_EQ(both->tensors().size(), 2u);
  EXPECT_FALSE(adopt({second, first}).ok());
  EXPECT_FALSE(adopt({first}).ok());
  EXPECT_FALSE(adopt({first, first}).ok());
  EXPECT_FALSE(adopt({first, second, second}).ok());
  close(first.descriptor);
  close(second.descriptor);
}

TEST(ReadAt, GivesTheFilesBytesOrAnError) {
  const ScratchFolder folder;
  const std::string path = folder.file("m.gguf");
  const std::vector<std::byte> bytes = read_bytes(golden("qwen3"));
  write_bytes(path, bytes);
  const Result<File> file = File::open(path);
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> to(1000);
  ASSERT_TRUE(file->read_at(0, 12345, to).ok());
  EXPECT_EQ(std::memcmp(to.data(), bytes.data() + 12345, to.size()), 0);
  EXPECT_TRUE(file->read_at(0, bytes.size() - 1000, to).ok());
  EXPECT_EQ(file->read_at(0, bytes.size() - 999, to).error().code, ErrorCode::invalid);
  EXPECT_EQ(file->read_at(0, ~std::uint64_t{0}, to).error().code, ErrorCode::invalid);
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes.size() - 500)), 0);
  EXPECT_EQ(file->read_at(0, bytes.size() - 1000, to).error().code, ErrorCode::io);
}

TEST(ShrinkingDeathTest, AnEarlierHandlerStillGetsItsSignals) {
  // A process of its own, in which no file was opened before.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(42); });
        const Result<File> file = File::open(golden("qwen3"));
        raise(SIGBUS);
      },
      testing::ExitedWithCode(42), "");
}

// In processes in which nobody handled the signal before: a sanitizer would report it.
TEST(ShrinkingDeathTest, OtherBusErrorsStillEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto touch_lost_page = [] {
    const int fd = memfd_create("other", 0);
    if (ftruncate(fd, 8192) != 0) return;
    auto* at = static_cast<volatile char*>(mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, fd, 0));
    if (ftruncate(fd, 0) != 0) return;
    (void)at[4096];
  };
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const Result<File> file = File::open(golden("qwen3"));  // the handler is in place
        touch_lost_page();
      },
      testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const Result<File> file = File::open(golden("qwen3"));
        raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace tessera::gguf
