#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tessera::detail {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "tessera: internal error at %s:%d: %s is false. %.*s\n", file, line,
               condition, static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace tessera::detail
