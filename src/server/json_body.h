// Request bodies as JSON, checked before anything is built from them.
//
//   Result<Json> body = parse_json_body(text);
//
// Objects keep the order of their keys. A linear scan first bounds nesting, the number of values
// and the number of members of objects: the tree is some tens of bytes a value, and looking a
// member up is linear, so that a hostile body could otherwise cost far more memory and time than
// its own size.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tessera::server {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t depth = 128;
  std::size_t values = 4'000'000;
  // Sum over all objects of the square of their member count: what building them costs in
  // comparisons.
  std::size_t member_work = 200'000'000;
};

Status check_json_shape(std::string_view text, const JsonLimits& limits = {});
Result<Json> parse_json_body(std::string_view text, const JsonLimits& limits = {});

// One line. Bytes that are not UTF-8 become replacement characters.
std::string dump_json(const Json& value);

}  // namespace tessera::server
