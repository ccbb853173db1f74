// Where work runs: one I/O thread that owns connections and exchanges, and a few workers for what
// may take long. Both functions may be called from any thread and return at once; after the server
// stopped, tasks are dropped unrun.
#pragma once

#include <functional>

namespace tessera::server {

using Task = std::function<void()>;

struct Executors {
  std::function<void(Task)> io;
  std::function<void(Task)> worker;
};

}  // namespace tessera::server
