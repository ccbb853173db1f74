// All bytes of a file that a person named: a text, a list, a configuration. Models are mapped
// instead (gguf/mapping.h).
//
//   TESSERA_ASSIGN(const std::string text, read_file("tessera.toml", kMostTextBytes));
//
// A pipe is read to its end. What has more than `most` bytes is refused when so many were read:
// a device like /dev/zero has no end. Errors: io, and invalid for what is too long.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace tessera {

inline constexpr std::size_t kMostTextBytes = std::size_t{64} << 20;

Result<std::string> read_file(const std::string& path, std::size_t most);
// From where the descriptor is, which stays the caller's. `name`: for errors.
Result<std::string> read_descriptor(int descriptor, const std::string& name, std::size_t most);

}  // namespace tessera
