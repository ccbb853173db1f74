// What both kinds of channel do with a non-blocking socket.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/result.h"
#include "worker/fd.h"
#include "worker/transport.h"

namespace tessera::worker {

struct Readiness {
  bool ready = false;    // one of the events that were asked for
  bool hung_up = false;  // the peer closed or died; what it sent before may still be read
};

// Waits for poll() events (0: for the end of the peer alone) until the deadline.
Readiness wait_for(int fd, short events, Deadline deadline);

// An errno, the last one unless it is given, as an Error: "what: reason".
Error system_error(std::string_view what);
Error system_error(std::string_view what, int code);

Status set_nonblocking(int fd);

}  // namespace tessera::worker
