// Value: one metadata value of a GGUF file, as a typed view of its bytes in the file.
//
// A Value owns nothing: it lives as long as the File (or the bytes) it came from. Reading one is
// bounds-checked every time, because a mapped file can change under its reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::gguf {

// The values are the type ids of GGUF.
enum class ValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

const char* value_type_name(ValueType type);
// Bytes of one packed element; 0 for strings and arrays.
std::size_t value_type_bytes(ValueType type);
bool is_integer(ValueType type);
bool is_float(ValueType type);

class Value {
 public:
  // `bytes` holds `count` packed elements of `element`; a scalar has count 1.
  Value(ValueType element, bool is_array, std::uint64_t count, std::span<const std::byte> bytes)
      : element_(element), is_array_(is_array), count_(count), bytes_(bytes) {}

  ValueType type() const { return is_array_ ? ValueType::array : element_; }
  bool is_array() const { return is_array_; }
  ValueType element_type() const { return element_; }  // the type itself for a scalar
  std::uint64_t size() const { return count_; }        // elements of an array, 1 for a scalar
  std::span<const std::byte> bytes() const { return bytes_; }

  // "u32", "array of 40 i32": for messages.
  std::string describe() const;

  // Scalars. Integers of any width are accepted where they fit; floats are finite f32 or f64.
  Result<std::int64_t> as_i64() const;
  Result<std::uint64_t> as_u64() const;
  Result<float> as_f32() const;
  Result<bool> as_bool() const;
  Result<std::string_view> as_string() const;

  // Arrays. as_bools also takes integers that are 0 or 1. A scalar is not an array of one.
  Result<std::vector<std::int64_t>> as_ints() const;
  Result<std::vector<float>> as_floats() const;
  Result<std::vector<bool>> as_bools() const;
  Result<std::vector<std::string_view>> as_strings() const;

 private:
  ValueType element_;
  bool is_array_;
  std::uint64_t count_;
  std::span<const std::byte> bytes_;
};

}  // namespace tessera::gguf
