#include "worker/reception.h"

#include <utility>

#include "base/log.h"
#include "base/within_memory.h"

namespace tessera::worker {
namespace {

constexpr auto kAcceptFor = std::chrono::hours(1);
// Descriptors come back when somebody leaves.
constexpr auto kPause = std::chrono::milliseconds(500);

}  // namespace

Reception::Reception(Listener& listener, const AcceptOptions& options, Ready ready)
    : listener_(listener), options_(options), ready_(std::move(ready)) {}

Reception::~Reception() {
  for (Guest& guest : guests_) guest.interrupter.interrupt();
  for (Guest& guest : guests_) guest.thread.join();
}

void Reception::run() {
  for (;;) {
    Result<Fd> socket = listener_.take(after(kAcceptFor));
    if (!socket) {
      log_warn("{}", socket.error().message);
      if (socket.error().code == ErrorCode::exhausted)
        std::this_thread::sleep_for(kPause);
      else
        count(RefuseReason::authentication);  // of another user
      continue;
    }
    if (listener_.stopped()) return;
    if (!*socket) continue;
    make_room();
    const Status admitted = within_memory([&] { return admit(*std::move(socket)); });
    if (admitted) continue;
    log_warn("a client was turned away: {}", admitted.error().message);
    count(RefuseReason::memory);
  }
}

// Of a client that is told nothing.
void Reception::count(RefuseReason reason) {
  if (options_.refusals != nullptr) options_.refusals->count(reason);
}

void Reception::make_room() {
  if (guests_.size() >= kMostAttaching) {
    std::erase_if(guests_, [](Guest& guest) {
      if (!guest.done) return false;
      guest.thread.join();
      return true;
    });
  }
  if (guests_.size() >= kMostAttaching) {
    guests_.front().interrupter.interrupt();
    guests_.front().thread.join();
    guests_.pop_front();
  }
}

Status Reception::admit(Fd socket) {
  // Among the guests only with its thread, which whoever ends a guest joins.
  std::list<Guest> one(1);
  Guest& guest = one.front();
  guest.interrupter.watch(socket.get());
  guest.thread = std::thread(
      [this, &guest, fd = std::move(socket)]() mutable { attach(guest, std::move(fd)); });
  guests_.splice(guests_.end(), one);
  return {};
}

void Reception::attach(Guest& guest, Fd socket) {
  const Status attached = within_memory([&]() -> Status {
    TESSERA_ASSIGN(
        std::unique_ptr<Channel> client,
        attach_worker(std::move(socket), listener_.kind(), options_, after(kAttachTime)));
    guest.interrupter.forget();
    ready_(std::move(client));
    return {};
  });
  guest.interrupter.forget();
  if (!attached) log_warn("{}", attached.error().message);
  guest.done = true;
}

}  // namespace tessera::worker
