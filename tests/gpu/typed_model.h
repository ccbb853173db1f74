// Small synthetic models whose matrices are stored in one block type.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gguf/writer.h"
#include "model/model.h"
#include "model/synth.h"

namespace tessera::testing {

// Removes its file.
class TypedModel {
 public:
  // A tiny model of the family, every matrix whose rows fit in `type`.
  TypedModel(const std::string& family, BlockType type, std::vector<std::string> overrides = {}) {
    const std::string plain = path("f32");
    const Status written = write_synthetic_model(
        {.family = family, .preset = "tiny", .types = "f32", .overrides = std::move(overrides)},
        plain);
    EXPECT_TRUE(written) << written.error().message;
    path_ = path(block_type_name(type));
    convert(plain, type);
    std::filesystem::remove(plain);
  }
  ~TypedModel() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }

 private:
  static std::string path(const std::string& ending) {
    static int count = 0;
    const std::string name = "tessera_gpu_" + std::to_string(::getpid()) + "_" +
                             std::to_string(count++) + "_" + ending + ".gguf";
    return (std::filesystem::path(::testing::TempDir()) / name).string();
  }

  static BlockType type_of(const gguf::TensorInfo& tensor, BlockType type) {
    const bool matrix = tensor.ne.size() >= 2 && tensor.name.find("conv1d") == std::string::npos &&
                        tensor.name.find("rope_freqs") == std::string::npos;
    if (!matrix || tensor.ne[0] % block_format(type).elems != 0) return BlockType::F32;
    return type;
  }

  void convert(const std::string& from, BlockType type) {
    Result<gguf::File> file = gguf::File::open(from);
    ASSERT_TRUE(file) << file.error().message;
    Result<gguf::Writer> writer = gguf::Writer::create(path_);
    ASSERT_TRUE(writer) << writer.error().message;
    for (const auto& entry : file->metadata().entries()) writer->add(entry.key, entry.value);
    for (const gguf::TensorInfo& tensor : file->tensors())
      writer->add_tensor(tensor.name, type_of(tensor, type), tensor.ne);
    for (const gguf::TensorInfo& tensor : file->tensors()) {
      std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
      dequantize_row(tensor.type, tensor.data, tensor.elements(), values.data());
      const BlockType to = type_of(tensor, type);
      std::vector<std::byte> bytes(
          static_cast<std::size_t>(row_bytes(to, static_cast<std::int64_t>(values.size()))));
      quantize_row(to, values.data(), static_cast<std::int64_t>(values.size()), bytes.data());
      ASSERT_TRUE(writer->write(bytes));
    }
    const Status finished = writer->finish();
    ASSERT_TRUE(finished) << finished.error().message;
  }

  std::string path_;
};

}  // namespace tessera::testing
