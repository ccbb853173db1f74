// GoldenData: the arrays of tests/data/golden/NAME.bin (the form is in the README there).
//
//   GoldenData golden = GoldenData::load(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3.bin");
//   std::span<const std::int32_t> prompt = golden.ints("p33_ids");
//   std::span<const float> logits = golden.floats("p33_logits");  // [33, 512], C order
//
// For tests only: the files are part of the tree, so a file or an array that is missing or damaged
// is a CHECK. The spans live as long as the GoldenData.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace tessera {

// A model for each kind of family, and its files: "-bf16.gguf", ".bin" and others.
inline constexpr const char* kGoldenModels[] = {"qwen35moe", "qwen35",    "laguna",
                                                "gemma4",    "gemma4moe", "qwen3"};

inline std::string golden_path(std::string_view name, std::string_view ending) {
  return std::string(TESSERA_SOURCE_DIR "/tests/data/golden/").append(name).append(ending);
}

class GoldenData {
 public:
  static GoldenData load(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    CHECK(in.good(), "cannot open {}", path);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    Reader reader{bytes, 0};
    CHECK(reader.text(8) == "TSRGOLD1", "{} is not a file of golden data", path);
    GoldenData data;
    const auto count = reader.number<std::uint32_t>();
    for (std::uint32_t i = 0; i < count; ++i) data.read_array(reader);
    CHECK(reader.at == bytes.size(), "{} has bytes after its last array", path);
    return data;
  }

  std::span<const float> floats(std::string_view name) const { return array(name).floats; }
  std::span<const std::int32_t> ints(std::string_view name) const { return array(name).ints; }
  // Slowest dimension first.
  std::span<const std::int64_t> shape(std::string_view name) const { return array(name).shape; }
  bool contains(std::string_view name) const { return arrays_.contains(name); }

 private:
  struct Array {
    std::vector<std::int64_t> shape;
    std::vector<float> floats;  // one of the two is filled
    std::vector<std::int32_t> ints;
  };

  struct Reader {
    std::string_view bytes;
    std::size_t at;

    std::string_view text(std::size_t n) {
      CHECK(n <= bytes.size() - at, "golden data end too early");
      at += n;
      return bytes.substr(at - n, n);
    }
    template <typename T>
    T number() {
      T value;
      std::memcpy(&value, text(sizeof(T)).data(), sizeof(T));
      return value;
    }
    template <typename T>
    std::vector<T> numbers(std::size_t n) {
      std::vector<T> values(n);
      const std::string_view from = text(n * sizeof(T));
      if (n > 0) std::memcpy(values.data(), from.data(), from.size());
      return values;
    }
  };

  void read_array(Reader& reader) {
    const std::string name(reader.text(reader.number<std::uint32_t>()));
    const auto type = reader.number<std::uint32_t>();
    const auto dims = reader.number<std::uint32_t>();
    Array array{.shape = reader.numbers<std::int64_t>(dims), .floats = {}, .ints = {}};
    std::size_t elements = 1;
    for (const std::int64_t extent : array.shape) elements *= static_cast<std::size_t>(extent);
    CHECK(type <= 1, "array {} has type {}", name, type);
    if (type == 0) array.floats = reader.numbers<float>(elements);
    if (type == 1) array.ints = reader.numbers<std::int32_t>(elements);
    arrays_.emplace(name, std::move(array));
  }

  const Array& array(std::string_view name) const {
    const auto found = arrays_.find(name);
    CHECK(found != arrays_.end(), "golden data have no array {}", name);
    return found->second;
  }

  std::map<std::string, Array, std::less<>> arrays_;
};

}  // namespace tessera
