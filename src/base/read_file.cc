#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{64} << 10;

Error io_error(const std::string& name) {
  return Error::make(ErrorCode::io, "{}: cannot be read: {}", name, std::strerror(errno));
}

}  // namespace

Result<std::string> read_descriptor(int descriptor, const std::string& name, std::size_t most) {
  std::string text;
  for (std::size_t used = 0;;) {
    text.resize(std::min(std::max(2 * used, kFirstBytes), most + 1));
    const ssize_t n = ::read(descriptor, text.data() + used, text.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(name);
    used += static_cast<std::size_t>(n);
    if (used > most)
      return Error::make(ErrorCode::invalid, "{}: longer than the {} bytes that are read", name,
                         most);
    if (n == 0) {
      text.resize(used);
      return text;
    }
  }
}

Result<std::string> read_file(const std::string& path, std::size_t most) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return io_error(path);
  Result<std::string> text = read_descriptor(descriptor, path, most);
  ::close(descriptor);
  return text;
}

}  // namespace tessera
