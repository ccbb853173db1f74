// The process environment. Everything that reads it does so here, once, when the program starts.
//
//   std::optional<std::string> home = environment_variable("HOME");
//   for (const auto& [name, value] : environment_with_prefix("TESSERA_")) ...
//
// Not safe against a concurrent setenv, which nothing in the program calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// Absent when unset or empty.
std::optional<std::string> environment_variable(const std::string& name);

// (name, value), sorted by name.
std::vector<std::pair<std::string, std::string>> environment_with_prefix(std::string_view prefix);

}  // namespace tessera
