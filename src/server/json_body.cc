#include "server/json_body.h"

#include <vector>

namespace tessera::server {
namespace {

// The index after the string that starts at text[begin] == '"'.
std::size_t skip_string(std::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

}  // namespace

Status check_json_shape(std::string_view text, const JsonLimits& limits) {
  std::vector<std::size_t> members;  // of the open objects and arrays
  std::size_t values = 0;
  std::size_t work = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        i = skip_string(text, i) - 1;
        break;
      case '{':
      case '[':
        if (members.size() == limits.depth) {
          return Error::make(ErrorCode::invalid,
                             "the body nests deeper than {} levels at byte {}; flatten it",
                             limits.depth, i);
        }
        members.push_back(0);
        ++values;
        break;
      case '}':
      case ']':
        if (!members.empty()) members.pop_back();
        break;
      case ',':
        ++values;
        break;
      case ':':
        // (k + 1)^2 - k^2: the running sum of squares.
        if (!members.empty()) work += 2 * members.back()++ + 1;
        break;
      default:
        break;
    }
    if (values > limits.values) {
      return Error::make(ErrorCode::invalid, "the body has more than {} values", limits.values);
    }
    if (work > limits.member_work) {
      return Error::make(ErrorCode::invalid, "an object of the body has too many members");
    }
  }
  return {};
}

Result<Json> parse_json_body(std::string_view text, const JsonLimits& limits) {
  TESSERA_TRY(check_json_shape(text, limits));
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return Error::make(ErrorCode::invalid, "the body is not valid JSON near byte {}", error.byte);
  } catch (const Json::exception&) {
    return Error::make(ErrorCode::invalid,
                       "the body has a number too large to be represented (beyond 1.8e308)");
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera::server
