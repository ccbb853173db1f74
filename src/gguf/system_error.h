// Inside the gguf room: what the system said about a file, as an Error that names it.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

#include "base/result.h"

namespace tessera::gguf {

// Of errno: "model.gguf: cannot open the file: Permission denied".
inline Error system_error(const std::string& path, const char* action) {
  const std::error_code code(errno, std::generic_category());
  return Error::make(
      code == std::errc::no_such_file_or_directory ? ErrorCode::not_found : ErrorCode::io,
      "{}: cannot {}: {}", path, action, code.message());
}

}  // namespace tessera::gguf
