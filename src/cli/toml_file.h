// A TOML configuration file as a flat list of keys, in the words of the option table.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

struct TomlEntry {
  std::string key;                  // "server.port"
  std::vector<std::string> values;  // several for an array
  bool is_array = false;
  int line = 0;
};

// Errors name the file and the line.
Result<std::vector<TomlEntry>> read_toml_file(const std::string& path);

}  // namespace tessera::cli
