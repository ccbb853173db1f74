// Address: where a worker listens.
//
//   unix:/run/tessera/worker.sock    a socket file; both ends are of the same user, or root
//   tcp:host:port, tcp:[::1]:7000    another machine; needs a token (auth.h)
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tessera::worker {

struct Address {
  enum class Kind { unix_path, tcp };
  Kind kind = Kind::unix_path;
  std::string host;  // the path of a unix address
  std::string port;  // tcp: decimal, 0 to 65535

  static Result<Address> parse(std::string_view text);
  std::string text() const;
  bool operator==(const Address&) const = default;
};

}  // namespace tessera::worker
