#include "server/fields.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace tessera::server {
namespace {

// The integer that a JSON number is, also when written as 3.0.
std::optional<std::int64_t> exact_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto wide = value.get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return static_cast<std::int64_t>(wide);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return {};
  const double real = value.get<double>();
  if (std::trunc(real) != real || std::abs(real) > 9007199254740992.0) return {};
  return static_cast<std::int64_t>(real);
}

}  // namespace

std::string shown(const Json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMost) {
    return fmt::format("a string of {} bytes", value.get_ref<const std::string&>().size());
  }
  return dump_json(value);
}

FieldReader::FieldReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  CHECK(object.is_object(), "fields are read from objects");
}

std::string FieldReader::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail(const std::string& name, std::string message) {
  const std::string path = path_of(name);
  fail(bad_request(fmt::format("{} {}", path, message), path));
}

void FieldReader::fail_type(const std::string& name, const Json& value, std::string_view expected) {
  fail(name, fmt::format("is {}; it must be {}", shown(value), expected));
}

const Json* FieldReader::any(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> FieldReader::integer(const std::string& name, std::int64_t min,
                                                 std::int64_t max) {
  const Json* value = any(name);
  if (!value) return {};
  const auto integer = exact_integer(*value);
  if (!integer || *integer < min || *integer > max) {
    fail_type(name, *value, fmt::format("an integer from {} to {}", min, max));
    return {};
  }
  return integer;
}

std::optional<double> FieldReader::number(const std::string& name, double min, double max) {
  const Json* value = any(name);
  if (!value) return {};
  const double real = value->is_number() ? value->get<double>() : std::nan("");
  if (!(real >= min && real <= max)) {
    fail_type(name, *value, fmt::format("a number from {} to {}", min, max));
    return {};
  }
  return real;
}

std::optional<bool> FieldReader::boolean(const std::string& name) {
  const Json* value = any(name);
  if (!value) return {};
  if (!value->is_boolean()) {
    fail_type(name, *value, "true or false");
    return {};
  }
  return value->get<bool>();
}

std::optional<std::string> FieldReader::text(const std::string& name) {
  const Json* value = any(name);
  if (!value) return {};
  if (!value->is_string()) {
    fail_type(name, *value, "a string");
    return {};
  }
  return value->get<std::string>();
}

const Json* FieldReader::object(const std::string& name) {
  const Json* value = any(name);
  if (!value || value->is_object()) return value;
  fail_type(name, *value, "an object");
  return nullptr;
}

const Json* FieldReader::array(const std::string& name) {
  const Json* value = any(name);
  if (!value || value->is_array()) return value;
  fail_type(name, *value, "a list");
  return nullptr;
}

void FieldReader::ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void FieldReader::refuse(const std::string& name, std::string_view why) {
  const Json* value = any(name);
  if (value && !(value->is_boolean() && !value->get<bool>())) {
    fail(unsupported_field(path_of(name),
                           fmt::format("{} is not supported: {}", path_of(name), why)));
  }
}

void FieldReader::refuse_unknown() {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) fail(name, "is not a known field (strict parameters are on)");
  }
}

}  // namespace tessera::server
