#include "worker/reception.h"

#include <utility>

#include "base/log.h"

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
      if (socket.error().code == ErrorCode::exhausted) std::this_thread::sleep_for(kPause);
      continue;
    }
    if (listener_.stopped()) return;
    if (*socket) admit(*std::move(socket));
  }
}

void Reception::admit(Fd socket) {
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
  Guest& guest = guests_.emplace_back();
  guest.interrupter.watch(socket.get());
  guest.thread = std::thread(
      [this, &guest, fd = std::move(socket)]() mutable { attach(guest, std::move(fd)); });
}

void Reception::attach(Guest& guest, Fd socket) {
  Result<std::unique_ptr<Channel>> client =
      attach_worker(std::move(socket), listener_.kind(), options_, after(kAttachTime));
  guest.interrupter.forget();
  if (client) {
    ready_(*std::move(client));
  } else {
    log_warn("{}", client.error().message);
  }
  guest.done = true;
}

}  // namespace tessera::worker
