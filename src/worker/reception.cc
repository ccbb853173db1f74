#include "worker/reception.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/within_memory.h"

namespace tessera::worker {
namespace {

constexpr auto kAcceptFor = std::chrono::hours(1);
// Descriptors come back when somebody leaves.
constexpr auto kPause = std::chrono::milliseconds(500);

// The host at the other end. One that speaks IPv6 has a whole /64 of addresses.
std::string peer_of(int fd) {
  constexpr std::size_t kNetwork = 8, kMapped = 12;
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  if (storage.ss_family == AF_INET) {
    const in_addr& host = reinterpret_cast<const sockaddr_in&>(storage).sin_addr;
    return {reinterpret_cast<const char*>(&host), sizeof(host)};
  }
  if (storage.ss_family != AF_INET6) return {};
  const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  const auto* bytes = reinterpret_cast<const char*>(&host);
  if (IN6_IS_ADDR_V4MAPPED(&host)) return {bytes + kMapped, sizeof(in_addr)};
  return {bytes, kNetwork};
}

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
      failures_.warn(socket.error().message);
      if (socket.error().code == ErrorCode::exhausted)
        std::this_thread::sleep_for(kPause);
      else
        count(RefuseReason::authentication);  // of another user
      continue;
    }
    if (listener_.stopped()) return;
    if (!*socket) continue;
    const Status admitted = within_memory([&] {
      make_room();
      return admit(*std::move(socket));
    });
    if (admitted) continue;
    failures_.warn("a client was turned away: " + admitted.error().message);
    count(RefuseReason::memory);
  }
}

// Of a client that is told nothing.
void Reception::count(RefuseReason reason) {
  if (options_.refusals != nullptr) options_.refusals->count(reason);
}

void Reception::make_room() {
  while (guests_.size() >= kMostAttaching && !remove_done()) {
    const auto somebody_is_done = [this] {
      return std::any_of(guests_.begin(), guests_.end(),
                         [](const Guest& guest) { return guest.stage == Stage::done; });
    };
    std::unique_lock lock(mutex_);
    Guest* const victim = costliest();
    if (victim == nullptr) {  // all have attached, and are about to leave
      moved_on_.wait(lock, somebody_is_done);
    } else if (!moved_on_.wait_until(lock, victim->came + kLeastAttachTime, [&] {
                 return somebody_is_done() || victim->stage != Stage::attaching;
               })) {
      victim->interrupter.interrupt();
      moved_on_.wait(lock, somebody_is_done);
    }
  }
}

bool Reception::remove_done() {
  return std::erase_if(guests_, [this](Guest& guest) {
           {
             const std::lock_guard lock(mutex_);
             if (guest.stage != Stage::done) return false;
           }
           guest.thread.join();
           return true;
         }) > 0;
}

// Of those that have not attached, the oldest of the host that has most of them. Null: there are
// none.
Reception::Guest* Reception::costliest() {
  const auto places = [this](const Guest& of) {
    return std::count_if(guests_.begin(), guests_.end(), [&](const Guest& guest) {
      return guest.stage == Stage::attaching && guest.peer == of.peer;
    });
  };
  Guest* chosen = nullptr;
  for (Guest& guest : guests_)
    if (guest.stage == Stage::attaching && (chosen == nullptr || places(guest) > places(*chosen)))
      chosen = &guest;
  return chosen;
}

Status Reception::admit(Fd socket) {
  // Among the guests only with its thread, which whoever ends a guest joins.
  std::list<Guest> one(1);
  Guest& guest = one.front();
  guest.peer = peer_of(socket.get());
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
    enter(guest, Stage::attached);
    ready_(std::move(client));
    return {};
  });
  guest.interrupter.forget();
  if (!attached) failures_.warn(attached.error().message);
  enter(guest, Stage::done);
}

void Reception::enter(Guest& guest, Stage stage) {
  const std::lock_guard lock(mutex_);
  guest.stage = stage;
  moved_on_.notify_all();
}

}  // namespace tessera::worker
