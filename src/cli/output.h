// What a command says: its result on standard output, an error as one line on standard error.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace tessera::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitFault = 3;  // a device failed while the server ran
inline constexpr int kExitInterrupted = 130;

void print_out(std::string_view text);  // failures show in finish_output()
template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_out(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}
void flush_out();
// Whether all output arrived.
Status finish_output();

// Prints "tessera: ..." and returns the exit code.
int fail(const Error& error);
int misuse(const Error& error);
// kExitOk, or fail().
int exit_code(const Status& status);

// All of a file; "-" is standard input.
Result<std::string> read_text_file(const std::string& path);

// As text, whatever bytes its strings hold: ill-formed UTF-8 becomes U+FFFD.
template <typename Json>
std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera::cli
