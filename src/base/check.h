// CHECK(condition, "format", args...): a condition that only a bug can break. It holds in release
// builds too: the program prints the line and ends. What a user, a file or a peer can break is an
// Error (result.h), never a CHECK.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace tessera::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);
}  // namespace tessera::detail

#define CHECK(condition, ...)                                         \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::tessera::detail::check_failed(__FILE__, __LINE__, #condition, \
                                      ::fmt::format("" __VA_ARGS__)); \
  } while (false)
