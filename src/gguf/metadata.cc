#include "gguf/metadata.h"

#include <utility>

#include "base/checked.h"
#include "gguf/cursor.h"
#include "gguf/header.h"

namespace tessera::gguf {
namespace {

template <typename T>
Result<T> name_key(Result<T> result, std::string_view key) {
  if (!result) return std::move(result).error().in(fmt::format("metadata key {}", in_quotes(key)));
  return result;
}

Result<std::uint32_t> to_u32(const Value& value) {
  TESSERA_ASSIGN(const std::int64_t wide, value.as_i64());
  const auto narrow = checked_cast<std::uint32_t>(wide);
  if (!narrow) return Error::make(ErrorCode::invalid, "{} is not in 0..4294967295", wide);
  return *narrow;
}

// `scalar` n times, or `array` if it has n elements.
template <typename T>
Result<std::vector<T>> per_layer(const Value& value, std::size_t n,
                                 Result<T> (Value::*scalar)() const,
                                 Result<std::vector<T>> (Value::*array)() const) {
  if (!value.is_array()) {
    TESSERA_ASSIGN(const T one, (value.*scalar)());
    return std::vector<T>(n, one);
  }
  if (value.size() != n) {
    return Error::make(ErrorCode::invalid, "expected {} entries or a single one, found {}", n,
                       value.describe());
  }
  return (value.*array)();
}

}  // namespace

const Value* Metadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

Result<const Value*> Metadata::need(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return Error::make(ErrorCode::not_found, "metadata key {} is missing", in_quotes(key));
  }
  return value;
}

Status Metadata::add(std::string_view key, Value value) {
  if (key.empty()) return Error::make(ErrorCode::invalid, "a metadata key is empty");
  if (key.size() > kLongestKey) {
    return Error::make(ErrorCode::invalid, "metadata key {} has {} bytes, at most {} are allowed",
                       in_quotes(key), key.size(), kLongestKey);
  }
  if (!index_.emplace(std::string(key), entries_.size()).second) {
    return Error::make(ErrorCode::invalid, "metadata key {} appears twice", in_quotes(key));
  }
  entries_.push_back({std::string(key), value});
  return {};
}

Result<std::uint32_t> Metadata::get_u32(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(to_u32(*value), key);
}

Result<std::int64_t> Metadata::get_i64(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_i64(), key);
}

Result<float> Metadata::get_f32(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_f32(), key);
}

Result<bool> Metadata::get_bool(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_bool(), key);
}

Result<std::string_view> Metadata::get_string(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_string(), key);
}

Result<std::uint32_t> Metadata::get_u32_or(std::string_view key, std::uint32_t fallback) const {
  if (!contains(key)) return fallback;
  return get_u32(key);
}

Result<std::int64_t> Metadata::get_i64_or(std::string_view key, std::int64_t fallback) const {
  if (!contains(key)) return fallback;
  return get_i64(key);
}

Result<float> Metadata::get_f32_or(std::string_view key, float fallback) const {
  if (!contains(key)) return fallback;
  return get_f32(key);
}

Result<bool> Metadata::get_bool_or(std::string_view key, bool fallback) const {
  if (!contains(key)) return fallback;
  return get_bool(key);
}

Result<std::string_view> Metadata::get_string_or(std::string_view key,
                                                 std::string_view fallback) const {
  if (!contains(key)) return fallback;
  return get_string(key);
}

Result<std::vector<std::int64_t>> Metadata::get_int_array(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_ints(), key);
}

Result<std::vector<float>> Metadata::get_f32_array(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_floats(), key);
}

Result<std::vector<bool>> Metadata::get_bool_array(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_bools(), key);
}

Result<std::vector<std::string_view>> Metadata::get_string_array(std::string_view key) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(value->as_strings(), key);
}

Result<std::vector<std::int64_t>> Metadata::get_per_layer_int(std::string_view key,
                                                              std::size_t n) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(per_layer<std::int64_t>(*value, n, &Value::as_i64, &Value::as_ints), key);
}

Result<std::vector<float>> Metadata::get_per_layer_f32(std::string_view key, std::size_t n) const {
  TESSERA_ASSIGN(const Value* value, need(key));
  return name_key(per_layer<float>(*value, n, &Value::as_f32, &Value::as_floats), key);
}

}  // namespace tessera::gguf
