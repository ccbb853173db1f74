#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/read_file.h"

namespace tessera::cli {
namespace {

void print_error_line(const Error& error) {
  std::string line = error.message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "tessera: %s\n", line.c_str());
}

}  // namespace

void print_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void flush_out() {
  std::fflush(stdout);
}

Status finish_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return {};
  return Error::make(ErrorCode::io, "cannot write to standard output{}{}",
                     failed_before ? "" : ": ", failed_before ? "" : std::strerror(errno));
}

int fail(const Error& error) {
  flush_out();
  print_error_line(error);
  return kExitFailure;
}

int misuse(const Error& error) {
  print_error_line(error);
  return kExitUsage;
}

int exit_code(const Status& status) {
  return status ? kExitOk : fail(status.error());
}

Result<std::string> read_text_file(const std::string& path) {
  if (path == "-") return read_descriptor(STDIN_FILENO, "standard input", kMostTextBytes);
  return read_file(path, kMostTextBytes);
}

}  // namespace tessera::cli
