#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace tessera {

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::vector<std::pair<std::string, std::string>> environment_with_prefix(std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || !text.starts_with(prefix)) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace tessera
