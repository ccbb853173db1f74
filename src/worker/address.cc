#include "worker/address.h"

#include <sys/un.h>

#include <charconv>

namespace tessera::worker {
namespace {

Error wrong(std::string_view text, std::string_view why) {
  return Error::make(ErrorCode::invalid,
                     "'{}' is no worker address ({}); right are unix:/path and tcp:host:port", text,
                     why);
}

bool valid_port(std::string_view port) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  return error == std::errc() && end == port.data() + port.size() && value <= 65535;
}

}  // namespace

Result<Address> Address::parse(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return wrong("?", "a zero byte");
  if (text.starts_with("unix:")) {
    const std::string_view path = text.substr(5);
    if (!path.starts_with('/')) return wrong(text, "the path is not absolute");
    if (path.size() >= sizeof(sockaddr_un::sun_path)) return wrong(text, "the path is too long");
    return Address{Kind::unix_path, std::string(path), {}};
  }
  if (!text.starts_with("tcp:")) return wrong(text, "unknown scheme");
  std::string_view rest = text.substr(4);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return wrong(text, "no port");
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong(text, "an IPv6 host goes in brackets");
  }
  if (host.empty()) return wrong(text, "no host");
  if (!valid_port(port)) return wrong(text, "the port is not a number up to 65535");
  return Address{Kind::tcp, std::string(host), std::string(port)};
}

std::string Address::text() const {
  if (kind == Kind::unix_path) return "unix:" + host;
  if (host.find(':') != std::string::npos) return fmt::format("tcp:[{}]:{}", host, port);
  return fmt::format("tcp:{}:{}", host, port);
}

}  // namespace tessera::worker
