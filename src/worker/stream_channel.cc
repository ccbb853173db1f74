#include "worker/stream_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

constexpr auto kNeverStuck = std::chrono::hours(24);

struct ControlSpace {
  alignas(cmsghdr) std::byte bytes[CMSG_SPACE(sizeof(int))];
};

// Takes the one descriptor of a message; closes what was not asked for.
void take_descriptors(msghdr& message, Fd* wanted) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int value;
      std::memcpy(&value, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      Fd owned(value);
      if (wanted != nullptr && !*wanted) *wanted = std::move(owned);
    }
  }
}

// Drops `n` bytes from the front.
void advance(std::span<iovec>& pieces, std::size_t n) {
  while (!pieces.empty() && n >= pieces[0].iov_len) {
    n -= pieces[0].iov_len;
    pieces = pieces.subspan(1);
  }
  if (n > 0) {
    pieces[0].iov_base = static_cast<std::byte*>(pieces[0].iov_base) + n;
    pieces[0].iov_len -= n;
  }
}

}  // namespace

Result<std::unique_ptr<StreamChannel>> StreamChannel::adopt(Fd socket, std::string description) {
  TESSERA_TRY(set_nonblocking(socket.get()));
  return std::unique_ptr<StreamChannel>(
      new StreamChannel(std::move(socket), std::move(description)));
}

Error StreamChannel::fail(Error error) {
  close();
  return std::move(error).in(description_);
}

Error StreamChannel::no_room(Op op) const {
  return Error::make(ErrorCode::exhausted, "{}: no room for {} before the deadline", description_,
                     op_name(op));
}

Status StreamChannel::lay_out(const FrameHeader& header, Parts parts, Outgoing& out) {
  if (parts.size() >= out.storage.size())
    return Error::make(ErrorCode::invalid, "a body of {} parts; at most {}", parts.size(),
                       out.storage.size() - 1);
  encode_header(header, out.header);
  out.storage[0] = {out.header.data(), out.header.size()};
  std::size_t n = 1;
  for (const std::span<const std::byte> part : parts)
    if (!part.empty()) out.storage[n++] = {const_cast<std::byte*>(part.data()), part.size()};
  out.pieces = std::span(out.storage).first(n);
  return {};
}

Status StreamChannel::put(const FrameHeader& header, Parts parts, Deadline deadline) {
  TESSERA_ASSIGN(const bool clear, flush(deadline));
  if (!clear) return no_room(header.op);
  Outgoing out;
  TESSERA_TRY(lay_out(header, parts, out));
  TESSERA_ASSIGN(const bool whole, push(out, deadline, kNeverStuck));
  if (whole) return {};
  if (!out.started) return no_room(header.op);
  return fail(Error::make(ErrorCode::unavailable,
                          "the peer took only a part of {} before the deadline",
                          op_name(header.op)));
}

Status StreamChannel::put_or_keep(const FrameHeader& header, Parts parts, Deadline deadline,
                                  Clock::duration stuck) {
  TESSERA_ASSIGN(const bool clear, flush(std::min(deadline, after(stuck))));
  if (!clear) return no_room(header.op);
  Outgoing out;
  TESSERA_TRY(lay_out(header, parts, out));
  TESSERA_ASSIGN(const bool whole, push(out, deadline, stuck));
  if (whole) return {};
  if (!out.started) return no_room(header.op);
  rest_.clear();
  rest_sent_ = 0;
  for (const iovec& piece : out.pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    rest_.insert(rest_.end(), bytes, bytes + piece.iov_len);
  }
  has_rest_ = true;
  return {};
}

Result<bool> StreamChannel::flush(Deadline deadline) {
  if (!has_rest_) return true;
  Outgoing out;
  out.storage[0] = {rest_.data() + rest_sent_, rest_.size() - rest_sent_};
  out.pieces = std::span(out.storage).first(1);
  TESSERA_ASSIGN(const bool whole, push(out, deadline, kNeverStuck));
  rest_sent_ = whole ? rest_.size() : rest_.size() - out.pieces[0].iov_len;
  has_rest_ = !whole;
  return whole;
}

Result<bool> StreamChannel::push(Outgoing& out, Deadline deadline, Clock::duration stuck) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", description_);
  while (!out.pieces.empty()) {
    msghdr message{};
    message.msg_iov = out.pieces.data();
    message.msg_iovlen = out.pieces.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      out.started = true;
      advance(out.pieces, static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return fail(Error::make(ErrorCode::unavailable, "the peer is gone (sending: {})",
                              std::strerror(errno)));
    TESSERA_ASSIGN(const bool room, wait_for_room(std::min(deadline, after(stuck))));
    if (!room) return false;
  }
  return true;
}

Result<bool> StreamChannel::wait_for_room(Deadline deadline) {
  Frame* const place = taker_ != nullptr ? taker_->place() : nullptr;
  const int events = place != nullptr ? POLLOUT | POLLIN : POLLOUT;
  const Readiness room = wait_for(socket_.get(), static_cast<short>(events), deadline);
  if (room.hung_up) return fail(Error::make(ErrorCode::unavailable, "the peer is gone"));
  if (place != nullptr && room.ready) {
    TESSERA_ASSIGN(const bool came, receive(*place, Deadline::min()));
    if (came) taker_->take();
  }
  // A peer that sends and does not read makes the socket ready for ever.
  return room.ready && Clock::now() < deadline;
}

Status StreamChannel::send_with_descriptor(FrameHeader header, std::span<const std::byte> body,
                                           int descriptor, Deadline deadline) {
  // One message of a hundred-odd bytes into an empty socket buffer: whole or not at all.
  std::vector<std::byte> bytes(kHeaderBytes);
  seal(header, Parts(&body, 1));
  encode_header(header, std::span<std::byte, kHeaderBytes>(bytes.data(), kHeaderBytes));
  bytes.insert(bytes.end(), body.begin(), body.end());
  iovec piece{bytes.data(), bytes.size()};
  ControlSpace control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(c), &descriptor, sizeof(int));
  for (;;) {
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return {};
    const bool again = sent < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK);
    if (!again || !wait_for(socket_.get(), POLLOUT, deadline).ready)
      return fail(
          Error::make(ErrorCode::unavailable, "the peer does not take {}", op_name(header.op)));
  }
}

Result<bool> StreamChannel::fill(std::span<std::byte> to, std::size_t& have, Deadline deadline,
                                 Fd* descriptor) {
  while (have < to.size()) {
    iovec piece{to.data() + have, to.size() - have};
    ControlSpace control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      take_descriptors(message, descriptor);
      have += static_cast<std::size_t>(got);
      if (!in_body_)
        if (Status start = check_start(to.first(have)); !start)
          return fail(std::move(start).error());
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
      return fail(Error::make(ErrorCode::unavailable, "the peer is gone"));
    const Readiness more = wait_for_more(deadline);
    if (!more.ready && !more.hung_up) return false;
  }
  return true;
}

// What is announced comes sooner than a thread that sleeps would wake.
Readiness StreamChannel::wait_for_more(Deadline deadline) {
  if (announcement_.pending() && Clock::now() < deadline) {
    announcement_.used();
    const Deadline until = std::min(deadline, after(kAnnouncedSpin));
    do {
      const Readiness now = wait_for(socket_.get(), POLLIN, Deadline::min());
      if (now.ready || now.hung_up) return now;
      std::this_thread::yield();  // whom it waits for may need this core
    } while (Clock::now() < until && !closed());
  }
  return wait_for(socket_.get(), POLLIN, deadline);
}

Result<bool> StreamChannel::receive_frame(Frame& frame, Deadline deadline, Fd* descriptor) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", description_);
  if (!in_body_) {
    TESSERA_ASSIGN(const bool whole, fill(raw_header_, header_have_, deadline, descriptor));
    if (!whole) return false;
    Result<FrameHeader> header = decode_header(raw_header_);
    if (!header) return fail(std::move(header).error());
    if (Status status = check_frame(*header, limits()); !status)
      return fail(std::move(status).error());
    partial_.take_room(frame);
    Result<std::span<std::byte>> room = partial_.prepare(header->body_bytes);
    if (!room) return fail(std::move(room).error());
    partial_.header = *header;
    partial_body_ = *room;
    body_have_ = 0;
    in_body_ = true;
  }
  TESSERA_ASSIGN(const bool whole, fill(partial_body_, body_have_, deadline, descriptor));
  if (!whole) return false;
  std::swap(frame, partial_);
  announcement_.saw(frame.header.op);
  in_body_ = false;
  header_have_ = 0;
  return true;
}

Result<bool> StreamChannel::get(Frame& frame, Deadline deadline) {
  return receive_frame(frame, deadline, nullptr);
}

Result<bool> StreamChannel::receive_with_descriptor(Frame& frame, Fd& descriptor,
                                                    Deadline deadline) {
  return checked(receive_frame(frame, deadline, &descriptor), frame);
}

void StreamChannel::close() {
  if (!closed_.exchange(true) && socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tessera::worker
