#include "model/readers/keys.h"

#include <cmath>

namespace tessera {

std::string Keys::choose(Names names) const {
  for (std::string_view name : names) {
    if (has(name)) return full(name);
  }
  return full(*names.begin());
}

Result<int> Keys::check(const std::string& key, std::int64_t value, IntRange range) const {
  if (value < range.min || value > range.max) {
    return Error::make(ErrorCode::invalid, "{} is {}; it must be between {} and {}", key, value,
                       range.min, range.max);
  }
  return static_cast<int>(value);
}

Result<int> Keys::integer(Names names, IntRange range) const {
  const std::string key = choose(names);
  TESSERA_ASSIGN(std::int64_t value, metadata_.get_i64(key));
  return check(key, value, range);
}

Result<int> Keys::integer_or(Names names, int fallback, IntRange range) const {
  if (!metadata_.contains(choose(names))) return fallback;
  return integer(names, range);
}

Result<std::vector<int>> Keys::per_layer(Names names, int n, IntRange range) const {
  const std::string key = choose(names);
  TESSERA_ASSIGN(auto values, metadata_.get_per_layer_int(key, static_cast<std::size_t>(n)));
  std::vector<int> checked;
  checked.reserve(values.size());
  for (std::int64_t value : values) {
    TESSERA_ASSIGN(int good, check(key, value, range));
    checked.push_back(good);
  }
  return checked;
}

Result<float> Keys::positive(Names names) const {
  const std::string key = choose(names);
  TESSERA_ASSIGN(float value, metadata_.get_f32(key));
  if (!(value > 0) || !std::isfinite(value)) {
    return Error::make(ErrorCode::invalid, "{} is {}; it must be greater than 0", key, value);
  }
  return value;
}

Result<float> Keys::positive_or(Names names, float fallback) const {
  if (!metadata_.contains(choose(names))) return fallback;
  return positive(names);
}

Result<float> Keys::non_negative_or(Names names, float fallback) const {
  const std::string key = choose(names);
  TESSERA_ASSIGN(float value, metadata_.get_f32_or(key, fallback));
  if (!(value >= 0) || !std::isfinite(value)) {
    return Error::make(ErrorCode::invalid, "{} is {}; it must not be negative", key, value);
  }
  return value;
}

Result<bool> Keys::boolean_or(Names names, bool fallback) const {
  return metadata_.get_bool_or(choose(names), fallback);
}

}  // namespace tessera
