// Writer: makes a GGUF file (version 3).
//
// Order of use: add() the metadata and add_tensor() the shapes, then write() the tensors' data in
// the order of add_tensor, in pieces of any size, then finish(). The file appears under its name
// only when finish() has succeeded; until then it is a temporary file beside it, which a Writer
// that is destroyed early removes. A mistake in add() or add_tensor() is remembered and returned by
// the next write() or finish(); after an error nothing more is written. Not thread safe.
//
//   TESSERA_ASSIGN(gguf::Writer out, gguf::Writer::create("tiny.gguf"));
//   out.add("general.architecture", "llama");
//   out.add("llama.block_count", std::uint32_t{2});
//   out.add_tensor("token_embd.weight", BlockType::Q4_K, {256, 320});
//   TESSERA_TRY(out.write(rows));
//   TESSERA_TRY(out.finish());
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "gguf/value.h"
#include "quant/block_format.h"

namespace tessera::gguf {

struct WriterOptions {
  std::uint32_t alignment = 32;  // a power of two from 8 to 65536; written out if it is not 32
};

template <typename T>
concept Number = std::same_as<T, std::uint8_t> || std::same_as<T, std::int8_t> ||
    std::same_as<T, std::uint16_t> || std::same_as<T, std::int16_t> ||
    std::same_as<T, std::uint32_t> || std::same_as<T, std::int32_t> ||
    std::same_as<T, std::uint64_t> || std::same_as<T, std::int64_t> || std::same_as<T, float> ||
    std::same_as<T, double> || std::same_as<T, bool>;

template <Number T>
constexpr ValueType value_type_of() {
  if constexpr (std::same_as<T, bool>) return ValueType::boolean;
  if constexpr (std::same_as<T, float>) return ValueType::f32;
  if constexpr (std::same_as<T, double>) return ValueType::f64;
  if constexpr (std::same_as<T, std::uint8_t>) return ValueType::u8;
  if constexpr (std::same_as<T, std::int8_t>) return ValueType::i8;
  if constexpr (std::same_as<T, std::uint16_t>) return ValueType::u16;
  if constexpr (std::same_as<T, std::int16_t>) return ValueType::i16;
  if constexpr (std::same_as<T, std::uint32_t>) return ValueType::u32;
  if constexpr (std::same_as<T, std::int32_t>) return ValueType::i32;
  if constexpr (std::same_as<T, std::uint64_t>) return ValueType::u64;
  if constexpr (std::same_as<T, std::int64_t>) return ValueType::i64;
}

class Writer {
 public:
  static Result<Writer> create(const std::string& path, WriterOptions options = {});

  Writer(Writer&& other) noexcept;
  Writer& operator=(Writer&& other) noexcept;
  ~Writer();

  // The stored type is exactly T: write std::uint32_t{2}, not 2u by habit.
  template <Number T>
  void add(std::string_view key, T value) {
    add_packed(key, value_type_of<T>(), std::nullopt, std::as_bytes(std::span(&value, 1)));
  }
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  // As it stands in another file.
  void add(std::string_view key, const Value& value);

  template <Number T>
  void add_array(std::string_view key, std::span<const T> values) {
    add_packed(key, value_type_of<T>(), values.size(), std::as_bytes(values));
  }
  template <Number T>
  requires(!std::same_as<T, bool>) void add_array(std::string_view key,
                                                  const std::vector<T>& values) {
    add_array(key, std::span<const T>(values));
  }
  void add_array(std::string_view key, const std::vector<bool>& values);
  void add_array(std::string_view key, std::span<const std::string_view> values);
  void add_array(std::string_view key, const std::vector<std::string>& values);

  // 1 to 4 positive extents, ne[0] the contiguous one and a multiple of the type's block.
  void add_tensor(std::string_view name, BlockType type, std::span<const std::int64_t> ne);
  void add_tensor(std::string_view name, BlockType type, std::initializer_list<std::int64_t> ne) {
    add_tensor(name, type, std::span<const std::int64_t>(ne.begin(), ne.size()));
  }

  // The next bytes of the current tensor; a call does not reach into the next one.
  Status write(std::span<const std::byte> bytes);

  // The whole of the next tensor as a hole: it reads as zeros and takes no disk.
  Status skip_tensor();

  // Flushes to the disk and gives the file its name. The Writer is done after it.
  Status finish();

 private:
  struct Tensor {
    std::string name;
    std::uint64_t bytes;
  };

  Writer(std::string path, std::string temporary_path, int fd, WriterOptions options);

  void add_packed(std::string_view key, ValueType element, std::optional<std::uint64_t> count,
                  std::span<const std::byte> packed);
  void fail(Error error);
  Status begin_data();
  Status put(std::span<const std::byte> bytes);
  Status pad();
  Status flush();
  void discard();

  std::string path_, temporary_path_;
  int fd_ = -1;
  std::uint64_t alignment_ = 32;
  std::optional<Error> error_;  // the first mistake

  std::uint64_t n_entries_ = 0;
  std::vector<std::byte> entries_, records_;  // the header's two sections, as they will be written
  std::unordered_set<std::string> keys_, names_;
  std::vector<Tensor> tensors_;
  std::uint64_t data_bytes_ = 0;  // of the tensors so far, padded

  bool in_data_ = false;
  std::size_t current_ = 0;            // tensor
  std::uint64_t current_written_ = 0;  // of that tensor
  std::uint64_t position_ = 0;         // in the file, buffered bytes included
  std::vector<std::byte> buffer_;
};

}  // namespace tessera::gguf
