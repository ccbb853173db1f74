// Metadata: the key-value section of a GGUF file, with accessors that state what they expect.
//
// Views (keys aside) point into the file and live as long as its File. A missing key is
// ErrorCode::not_found; a wrong type, an integer out of range or a wrong length is
// ErrorCode::invalid; both name the key. The _or forms return the default for a missing key only: a
// present key of the wrong type is still an error.
//
//   TESSERA_ASSIGN(std::uint32_t layers, metadata.get_u32("llama.block_count"));
//   TESSERA_ASSIGN(auto heads, metadata.get_per_layer_int("llama.attention.head_count", layers));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/value.h"

namespace tessera::gguf {

class Metadata {
 public:
  struct Entry {
    std::string key;
    Value value;
  };

  Metadata() = default;
  Metadata(Metadata&&) = default;
  Metadata& operator=(Metadata&&) = default;

  // In the order of the file.
  std::span<const Entry> entries() const { return entries_; }
  const Value* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }

  Result<std::uint32_t> get_u32(std::string_view key) const;
  Result<std::int64_t> get_i64(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  Result<std::uint32_t> get_u32_or(std::string_view key, std::uint32_t fallback) const;
  Result<std::int64_t> get_i64_or(std::string_view key, std::int64_t fallback) const;
  Result<float> get_f32_or(std::string_view key, float fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  // `fallback` must outlive the returned view.
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;

  Result<std::vector<std::int64_t>> get_int_array(std::string_view key) const;
  Result<std::vector<float>> get_f32_array(std::string_view key) const;
  Result<std::vector<bool>> get_bool_array(std::string_view key) const;
  Result<std::vector<std::string_view>> get_string_array(std::string_view key) const;

  // One integer (repeated n times) or an array of exactly n integers.
  Result<std::vector<std::int64_t>> get_per_layer_int(std::string_view key, std::size_t n) const;
  // The same for floats.
  Result<std::vector<float>> get_per_layer_f32(std::string_view key, std::size_t n) const;

  // Refuses a key that is there already, an empty one and one longer than 64 KiB.
  Status add(std::string_view key, Value value);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const {
      return std::hash<std::string_view>{}(key);
    }
  };

  Result<const Value*> need(std::string_view key) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> index_;
};

}  // namespace tessera::gguf
