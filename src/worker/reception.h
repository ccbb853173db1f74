// Reception: lets those who connect attach, several at a time, so that one that says nothing keeps
// nobody else waiting.
//
//   Reception reception(listener, options, [&](std::unique_ptr<Channel> client) { ... });
//   reception.run();              // until listener.stop()
//
// Each connection has kAttachTime and a thread of its own until it has attached, when `ready` is
// called on that thread. There are at most kMostAttaching of them; one more ends the oldest, so
// that a client that attaches at once, as they do, gets in past any number that do not. Where
// memory or threads run out, the connection is lost and no other.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "worker/connect.h"

namespace tessera::worker {

inline constexpr std::size_t kMostAttaching = 16;

class Reception {
 public:
  using Ready = std::function<void(std::unique_ptr<Channel>)>;

  // The listener must outlive it. `ready` is called by several threads at a time.
  Reception(Listener& listener, const AcceptOptions& options, Ready ready);
  ~Reception();

  void run();

 private:
  struct Guest {
    Interrupter interrupter;
    std::atomic<bool> done{false};
    std::thread thread;
  };
  void count(RefuseReason reason);
  void make_room();
  Status admit(Fd socket);
  void attach(Guest& guest, Fd socket);

  Listener& listener_;
  AcceptOptions options_;
  Ready ready_;
  std::list<Guest> guests_;  // of the thread in run(), the oldest first
};

}  // namespace tessera::worker
