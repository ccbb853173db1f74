#include "worker/stream_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "worker/crc32c.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

constexpr std::size_t kMaxParts = 8;

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

// A peer of an earlier version is let through, to be refused in the handshake.
Status check_sum(const FrameHeader& header, std::span<const std::byte> body) {
  if (header.version < kFirstVersionWithSums) return {};
  const std::uint32_t sum = crc32c(body);
  if (sum == header.body_sum) return {};
  return Error::make(ErrorCode::invalid,
                     "the checksum of {}'s body is {:08x}, its bytes make {:08x}",
                     op_name(header.op), header.body_sum, sum);
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

Status StreamChannel::send(FrameHeader header, Parts parts, Deadline deadline) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", description_);
  std::array<std::byte, kHeaderBytes> raw;
  std::array<iovec, kMaxParts + 1> storage;
  if (parts.size() > kMaxParts)
    return Error::make(ErrorCode::invalid, "a body of {} parts; at most {}", parts.size(),
                       kMaxParts);
  header.body_bytes = 0;
  header.body_sum = 0;
  storage[0] = {raw.data(), raw.size()};
  std::size_t n = 1;
  for (const std::span<const std::byte> part : parts) {
    header.body_bytes += part.size();
    header.body_sum = crc32c(part, header.body_sum);
    if (!part.empty()) storage[n++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
  encode_header(header, raw);
  std::span<iovec> pieces(storage.data(), n);
  bool started = false;
  while (!pieces.empty()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      started = true;
      advance(pieces, static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return fail(Error::make(ErrorCode::unavailable, "the peer is gone (sending {}: {})",
                              op_name(header.op), std::strerror(errno)));
    TESSERA_TRY(wait_for_room(header.op, started, deadline));
  }
  return {};
}

Status StreamChannel::wait_for_room(Op op, bool started, Deadline deadline) {
  Frame* const place = taker_ != nullptr ? taker_->place() : nullptr;
  const int events = place != nullptr ? POLLOUT | POLLIN : POLLOUT;
  const Readiness room = wait_for(socket_.get(), static_cast<short>(events), deadline);
  if (room.hung_up) return fail(Error::make(ErrorCode::unavailable, "the peer is gone"));
  if (place != nullptr && room.ready) {
    TESSERA_ASSIGN(const bool came, receive_frame(*place, Deadline::min(), nullptr));
    if (came) taker_->take();
  }
  // A peer that sends and does not read makes the socket ready for ever.
  if (room.ready && Clock::now() < deadline) return {};
  if (!started)
    return Error::make(ErrorCode::exhausted, "{}: no room for {} before the deadline", description_,
                       op_name(op));
  return fail(Error::make(ErrorCode::unavailable,
                          "the peer took only a part of {} before the deadline", op_name(op)));
}

Status StreamChannel::send_with_descriptor(FrameHeader header, std::span<const std::byte> body,
                                           int descriptor, Deadline deadline) {
  // One message of a hundred-odd bytes into an empty socket buffer: whole or not at all.
  std::vector<std::byte> bytes(kHeaderBytes);
  header.body_bytes = body.size();
  header.body_sum = crc32c(body);
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
    const Readiness more = wait_for(socket_.get(), POLLIN, deadline);
    if (!more.ready && !more.hung_up) return false;
  }
  return true;
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
    Result<std::span<std::byte>> room = partial_.prepare(header->body_bytes);
    if (!room) return fail(std::move(room).error());
    partial_.header = *header;
    partial_body_ = *room;
    body_have_ = 0;
    in_body_ = true;
  }
  TESSERA_ASSIGN(const bool whole, fill(partial_body_, body_have_, deadline, descriptor));
  if (!whole) return false;
  if (Status status = check_sum(partial_.header, partial_body_); !status)
    return fail(std::move(status).error());
  std::swap(frame, partial_);
  in_body_ = false;
  header_have_ = 0;
  return true;
}

Result<bool> StreamChannel::receive(Frame& frame, Deadline deadline) {
  return receive_frame(frame, deadline, nullptr);
}

Result<bool> StreamChannel::receive_with_descriptor(Frame& frame, Fd& descriptor,
                                                    Deadline deadline) {
  return receive_frame(frame, deadline, &descriptor);
}

void StreamChannel::close() {
  if (!closed_.exchange(true) && socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tessera::worker
