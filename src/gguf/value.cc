#include "gguf/value.h"

#include <cmath>

#include "base/checked.h"
#include "gguf/cursor.h"

namespace tessera::gguf {
namespace {

Error wrong_type(const char* expected, const Value& found) {
  return Error::make(ErrorCode::invalid, "expected {}, found {}", expected, found.describe());
}

Error cut_short() {
  return Error::make(ErrorCode::io, "the value changed in the file while it was being read");
}

template <typename T>
Result<std::int64_t> integer_of(Cursor& cursor) {
  const auto value = cursor.read<T>();
  if (!value) return cut_short();
  const auto narrowed = checked_cast<std::int64_t>(*value);
  if (!narrowed) return Error::make(ErrorCode::invalid, "{} does not fit in 63 bits", *value);
  return *narrowed;
}

Result<std::int64_t> read_integer(ValueType type, Cursor& cursor) {
  switch (type) {
    case ValueType::u8:
      return integer_of<std::uint8_t>(cursor);
    case ValueType::i8:
      return integer_of<std::int8_t>(cursor);
    case ValueType::u16:
      return integer_of<std::uint16_t>(cursor);
    case ValueType::i16:
      return integer_of<std::int16_t>(cursor);
    case ValueType::u32:
      return integer_of<std::uint32_t>(cursor);
    case ValueType::i32:
      return integer_of<std::int32_t>(cursor);
    case ValueType::u64:
      return integer_of<std::uint64_t>(cursor);
    case ValueType::i64:
      return integer_of<std::int64_t>(cursor);
    default:
      return Error::make(ErrorCode::internal, "not an integer type");
  }
}

Result<float> read_float(ValueType type, Cursor& cursor) {
  std::optional<double> value;
  if (type == ValueType::f32) {
    value = cursor.read<float>();
  } else {
    value = cursor.read<double>();
  }
  if (!value) return cut_short();
  const auto narrowed = static_cast<float>(*value);
  if (!std::isfinite(narrowed)) {
    return Error::make(ErrorCode::invalid, "{} is not a finite 32-bit float", *value);
  }
  return narrowed;
}

template <typename T, typename ReadOne>
Result<std::vector<T>> read_all(const Value& value, ReadOne read_one) {
  Cursor cursor(value.bytes());
  std::vector<T> out;
  out.reserve(static_cast<std::size_t>(value.size()));
  for (std::uint64_t i = 0; i < value.size(); ++i) {
    Result<T> element = read_one(cursor);
    if (!element) return std::move(element).error().in(fmt::format("element {}", i));
    out.push_back(*element);
  }
  return out;
}

}  // namespace

const char* value_type_name(ValueType type) {
  switch (type) {
    case ValueType::u8:
      return "u8";
    case ValueType::i8:
      return "i8";
    case ValueType::u16:
      return "u16";
    case ValueType::i16:
      return "i16";
    case ValueType::u32:
      return "u32";
    case ValueType::i32:
      return "i32";
    case ValueType::f32:
      return "f32";
    case ValueType::boolean:
      return "bool";
    case ValueType::string:
      return "string";
    case ValueType::array:
      return "array";
    case ValueType::u64:
      return "u64";
    case ValueType::i64:
      return "i64";
    case ValueType::f64:
      return "f64";
  }
  return "unknown";
}

std::size_t value_type_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    case ValueType::string:
    case ValueType::array:
      return 0;
  }
  return 0;
}

bool is_float(ValueType type) {
  return type == ValueType::f32 || type == ValueType::f64;
}

bool is_integer(ValueType type) {
  return value_type_bytes(type) != 0 && !is_float(type) && type != ValueType::boolean;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

std::string Value::describe() const {
  if (!is_array_) return value_type_name(element_);
  return fmt::format("an array of {} {}", count_, value_type_name(element_));
}

Result<std::int64_t> Value::as_i64() const {
  if (is_array_ || !is_integer(element_)) return wrong_type("an integer", *this);
  Cursor cursor(bytes_);
  return read_integer(element_, cursor);
}

Result<std::uint64_t> Value::as_u64() const {
  Cursor cursor(bytes_);
  if (!is_array_ && element_ == ValueType::u64) {
    const auto value = cursor.read<std::uint64_t>();
    if (!value) return cut_short();
    return *value;
  }
  TESSERA_ASSIGN(const std::int64_t value, as_i64());
  if (value < 0) return Error::make(ErrorCode::invalid, "{} is negative", value);
  return static_cast<std::uint64_t>(value);
}

Result<float> Value::as_f32() const {
  if (is_array_ || !is_float(element_)) return wrong_type("a float", *this);
  Cursor cursor(bytes_);
  return read_float(element_, cursor);
}

Result<bool> Value::as_bool() const {
  if (is_array_ || element_ != ValueType::boolean) return wrong_type("a bool", *this);
  Cursor cursor(bytes_);
  const auto value = cursor.read<std::uint8_t>();
  if (!value) return cut_short();
  return *value != 0;
}

Result<std::string_view> Value::as_string() const {
  if (is_array_ || element_ != ValueType::string) return wrong_type("a string", *this);
  Cursor cursor(bytes_);
  const auto value = cursor.read_string(kLongestString);
  if (!value) return cut_short();
  return *value;
}

Result<std::vector<std::int64_t>> Value::as_ints() const {
  if (!is_array_ || !is_integer(element_)) return wrong_type("an array of integers", *this);
  return read_all<std::int64_t>(*this, [&](Cursor& c) { return read_integer(element_, c); });
}

Result<std::vector<float>> Value::as_floats() const {
  if (!is_array_ || !is_float(element_)) return wrong_type("an array of floats", *this);
  return read_all<float>(*this, [&](Cursor& c) { return read_float(element_, c); });
}

Result<std::vector<bool>> Value::as_bools() const {
  if (!is_array_ || (element_ != ValueType::boolean && !is_integer(element_))) {
    return wrong_type("an array of bools", *this);
  }
  const ValueType as = element_ == ValueType::boolean ? ValueType::u8 : element_;
  return read_all<bool>(*this, [&](Cursor& c) -> Result<bool> {
    TESSERA_ASSIGN(const std::int64_t value, read_integer(as, c));
    if (value != 0 && value != 1) return Error::make(ErrorCode::invalid, "{} is not a bool", value);
    return value == 1;
  });
}

Result<std::vector<std::string_view>> Value::as_strings() const {
  if (!is_array_ || element_ != ValueType::string) return wrong_type("an array of strings", *this);
  return read_all<std::string_view>(*this, [](Cursor& c) -> Result<std::string_view> {
    const auto value = c.read_string(kLongestString);
    if (!value) return cut_short();
    return *value;
  });
}

}  // namespace tessera::gguf
