#include "worker/attach.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "worker/auth.h"
#include "worker/socket_io.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

const char* stream_name(SocketKind kind) {
  return kind == SocketKind::tcp ? "tcp stream" : "unix stream";
}

// The sequence of ATTACH, which nobody counts: two line ends, so that a program of another
// protocol, HTTP above all, answers at once what it does not understand and does not wait for more.
constexpr std::uint64_t kLineEnds = 0x0a0d0a0d0a0d0a0d;

Error no_answer(Op op) {
  return Error::make(ErrorCode::unavailable, "the peer sent no {} in time", op_name(op));
}

// The next frame, which must be `op`.
Status expect(StreamChannel& channel, Frame& frame, Op op, Deadline deadline,
              Fd* descriptor = nullptr) {
  Result<bool> came = descriptor != nullptr
                          ? channel.receive_with_descriptor(frame, *descriptor, deadline)
                          : channel.receive(frame, deadline);
  if (!came) return std::move(came).error();
  if (!*came) return no_answer(op);
  if (frame.header.op == op) return {};
  if (frame.header.op == Op::refuse) {
    TESSERA_ASSIGN(const Refuse refuse, decode_refuse(frame.body()));
    return refusal_error(refuse);
  }
  return Error::make(ErrorCode::invalid, "the peer sent {} where {} is due",
                     op_name(frame.header.op), op_name(op));
}

// The worker's first frame. At an address anybody may listen.
Status expect_first(StreamChannel& channel, Frame& frame, Op op, const AttachOptions& options,
                    Deadline deadline) {
  Status came = expect(channel, frame, op, deadline);
  if (came || !options.at_address || frame.header.op == Op::refuse) return came;
  return Error::make(came.error().code,
                     "{}; if that is no tessera worker, give the address of one (tessera worker "
                     "--listen ADDRESS)",
                     came.error().message);
}

Nonce to_nonce(std::span<const std::byte> body) {
  Nonce nonce;
  std::copy_n(body.begin(), nonce.size(), nonce.begin());
  return nonce;
}

Status prove_client(StreamChannel& channel, const AttachOptions& options, const Nonce& nonce,
                    Deadline deadline, Frame& frame) {
  TESSERA_TRY(expect_first(channel, frame, Op::challenge, options, deadline));
  const Nonce theirs = to_nonce(frame.body());
  TESSERA_TRY(channel.send({.op = Op::proof},
                           make_proof(options.token, ProofOf::client, nonce, theirs), deadline));
  TESSERA_TRY(expect(channel, frame, Op::attached, deadline));
  if (!same_proof(make_proof(options.token, ProofOf::worker, nonce, theirs), frame.body()))
    return Error::make(ErrorCode::invalid, "the worker does not know the token");
  return {};
}

Status prove_worker(StreamChannel& channel, const AcceptOptions& options, const Nonce& theirs,
                    Deadline deadline) {
  const Nonce nonce = random_nonce();
  TESSERA_TRY(channel.send({.op = Op::challenge}, nonce, deadline));
  Frame frame;
  TESSERA_TRY(expect(channel, frame, Op::proof, deadline));
  if (!same_proof(make_proof(options.token, ProofOf::client, theirs, nonce), frame.body()))
    return Error::make(ErrorCode::invalid, "a client that does not know the token was {}",
                       refuse_client(channel, {.reason = RefuseReason::authentication}, deadline,
                                     options.refusals));
  return channel.send({.op = Op::attached},
                      make_proof(options.token, ProofOf::worker, theirs, nonce), deadline);
}

// `frame` is the worker's last, for errors too.
Result<std::unique_ptr<Channel>> attach(Fd socket, SocketKind socket_kind,
                                        const AttachOptions& options, Deadline deadline,
                                        Frame& frame) {
  const bool tcp = socket_kind == SocketKind::tcp;
  if (tcp) TESSERA_TRY(check_token(options.token));
  TESSERA_ASSIGN(std::unique_ptr<StreamChannel> channel,
                 StreamChannel::adopt(std::move(socket), stream_name(socket_kind)));
  Attach attach{.kind = tcp ? AttachKind::stream : options.kind, .nonce = random_nonce()};
  if (attach.kind == AttachKind::stream) {
    TESSERA_TRY(channel->send({.op = Op::attach, .sequence = kLineEnds}, encode(attach), deadline));
    if (tcp) {
      TESSERA_TRY(prove_client(*channel, options, attach.nonce, deadline, frame));
    } else {
      TESSERA_TRY(expect_first(*channel, frame, Op::attached, options, deadline));
    }
    return std::unique_ptr<Channel>(std::move(channel));
  }
  attach.region_id = random_id();
  attach.to_worker_bytes = round_up(options.to_worker_bytes, kArenaAlign);
  attach.to_client_bytes = round_up(options.to_client_bytes, kArenaAlign);
  Fd descriptor;
  TESSERA_ASSIGN(RingMemory memory,
                 RingMemory::create({attach.to_worker_bytes, attach.to_client_bytes},
                                    attach.region_id, descriptor));
  TESSERA_TRY(channel->send_with_descriptor({.op = Op::attach, .sequence = kLineEnds},
                                            encode(attach), descriptor.get(), deadline));
  TESSERA_TRY(expect_first(*channel, frame, Op::attached, options, deadline));
  return std::unique_ptr<Channel>(std::make_unique<RingChannel>(
      channel->release(), std::move(memory), RingEnd::client, options.spin));
}

}  // namespace

Result<std::unique_ptr<Channel>> attach_client(Fd socket, SocketKind socket_kind,
                                               const AttachOptions& options, Deadline deadline,
                                               std::optional<Refuse>* refused) {
  Frame frame;
  Result<std::unique_ptr<Channel>> made =
      attach(std::move(socket), socket_kind, options, deadline, frame);
  if (made || refused == nullptr || frame.header.op != Op::refuse) return made;
  if (const Result<Refuse> refuse = decode_refuse(frame.body())) *refused = *refuse;
  return made;
}

Result<std::unique_ptr<Channel>> attach_worker(Fd socket, SocketKind socket_kind,
                                               const AcceptOptions& options, Deadline deadline) {
  const bool tcp = socket_kind == SocketKind::tcp;
  if (tcp) TESSERA_TRY(check_token(options.token));
  TESSERA_ASSIGN(std::unique_ptr<StreamChannel> channel,
                 StreamChannel::adopt(std::move(socket), stream_name(socket_kind)));
  Frame frame;
  Fd descriptor;
  TESSERA_TRY(expect(*channel, frame, Op::attach, deadline, &descriptor));
  TESSERA_ASSIGN(const Attach attach, decode_attach(frame.body()));
  if (attach.kind == AttachKind::stream) {
    if (tcp) {
      TESSERA_TRY(prove_worker(*channel, options, attach.nonce, deadline));
    } else {
      TESSERA_TRY(channel->send({.op = Op::attached}, deadline));
    }
    return std::unique_ptr<Channel>(std::move(channel));
  }
  const std::uint64_t most = std::max(attach.to_worker_bytes, attach.to_client_bytes);
  if (tcp || most > options.max_arena_bytes)
    return Error::make(
        ErrorCode::invalid, "a client that asked for shared memory of {} bytes each way{} was {}",
        most, tcp ? ", by tcp," : "",
        refuse_client(*channel, {.reason = RefuseReason::limits}, deadline, options.refusals));
  TESSERA_ASSIGN(RingMemory memory, RingMemory::open(attach, descriptor));
  TESSERA_TRY(channel->send({.op = Op::attached}, deadline));
  return std::unique_ptr<Channel>(std::make_unique<RingChannel>(
      channel->release(), std::move(memory), RingEnd::worker, options.spin));
}

}  // namespace tessera::worker
