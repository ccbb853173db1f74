// Reception: lets those who connect attach, several at a time, so that one that says nothing keeps
// nobody else waiting.
//
//   Reception reception(listener, options, [&](std::unique_ptr<Channel> client) { ... });
//   reception.run();              // until listener.stop()
//
// Each connection has kAttachTime and a thread of its own until it has attached, when `ready` is
// called on that thread. There are at most kMostAttaching of them; one more ends the oldest of the
// address that has most, so that a flood of connections costs its own. None is ended before it had
// kLeastAttachTime, which a client that attaches at once, as they do, does not need, nor after it
// has attached. Until a place is free nobody else is let in.
//
// Where memory or threads run out, the connection is lost and no other. Of clients that do not
// attach there is a line in the log now and then, not one for each.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "worker/connect.h"
#include "worker/rare_warning.h"

namespace tessera::worker {

inline constexpr std::size_t kMostAttaching = 16;
inline constexpr auto kLeastAttachTime = std::chrono::milliseconds(100);

class Reception {
 public:
  using Ready = std::function<void(std::unique_ptr<Channel>)>;

  // The listener must outlive it. `ready` is called by several threads at a time.
  Reception(Listener& listener, const AcceptOptions& options, Ready ready);
  ~Reception();

  void run();

 private:
  enum class Stage { attaching, attached, done };
  struct Guest {
    std::string peer;  // its host; all of a unix socket are of one
    Deadline came = Clock::now();
    Stage stage = Stage::attaching;  // under mutex_
    Interrupter interrupter;
    std::thread thread;
  };
  void count(RefuseReason reason);
  void make_room();
  bool remove_done();
  Guest* costliest();
  Status admit(Fd socket);
  void attach(Guest& guest, Fd socket);
  void enter(Guest& guest, Stage stage);

  Listener& listener_;
  AcceptOptions options_;
  Ready ready_;
  RareWarning failures_{"clients that did not attach"};
  std::mutex mutex_;  // of the guests' stages
  std::condition_variable moved_on_;
  std::list<Guest> guests_;  // of the thread in run(), the oldest first
};

}  // namespace tessera::worker
