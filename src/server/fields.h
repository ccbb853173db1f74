// FieldReader: typed, range-checked members of a JSON object. The first failure sticks.
//
//   FieldReader fields(body);
//   const auto n = fields.integer("n", 1, 64).value_or(1);
//   const auto stream = fields.boolean("stream").value_or(false);
//   if (!fields.ok()) return fields.error();
//
// A member that is absent or null is nothing. A failure is a 400 that names the member, its value
// and what would be right. The object must outlive the reader.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace tessera::server {

class FieldReader {
 public:
  explicit FieldReader(const Json& object, std::string path = "");

  std::optional<std::int64_t> integer(const std::string& name, std::int64_t min, std::int64_t max);
  std::optional<double> number(const std::string& name, double min, double max);
  std::optional<bool> boolean(const std::string& name);
  std::optional<std::string> text(const std::string& name);
  const Json* object(const std::string& name);
  const Json* array(const std::string& name);
  const Json* any(const std::string& name);  // null when absent or null

  // Marks members as known that have no effect on the answer.
  void ignore(std::initializer_list<const char*> names);
  // Fails when the member is there: it would change the answer in a way that is not supported.
  void refuse(const std::string& name, std::string_view why);
  // Fails on a member that nobody asked for.
  void refuse_unknown();

  void fail(const std::string& name, std::string message);
  void fail(ApiError error);
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }
  std::string path_of(const std::string& name) const;

 private:
  void fail_type(const std::string& name, const Json& value, std::string_view expected);

  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

// A value as an error message shows it: short, one line.
std::string shown(const Json& value);

}  // namespace tessera::server
