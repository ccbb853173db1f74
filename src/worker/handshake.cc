#include "worker/handshake.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/log.h"
#include "base/within_memory.h"
#include "worker/loading_beat.h"
#include "worker/ring_memory.h"

namespace tessera::worker {
namespace {

Refuse refuse(RefuseReason reason) {
  return {.reason = reason};
}

RefuseReason refuse_reason(ErrorCode code) {
  if (code == ErrorCode::exhausted) return RefuseReason::memory;
  if (code == ErrorCode::invalid) return RefuseReason::limits;
  if (code == ErrorCode::not_found) return RefuseReason::model;
  return RefuseReason::loading;
}

// Why this worker did not get ready. What it says of the client's wish the client is told; what
// went wrong here is for the log alone.
Refuse refuse_for(const Error& error) {
  Refuse made = refuse(refuse_reason(error.code));
  if (made.reason != RefuseReason::loading) made.text = error.message;
  return made;
}

// A worker must not grant what was not asked for.
bool fits(const HelloAck& ack, const Hello& hello) {
  return ack.version >= hello.version_min && ack.version <= hello.version_max &&
         (ack.in_types & ~hello.in_types) == 0 && (ack.out_types & ~hello.out_types) == 0 &&
         ack.max_rows <= hello.max_rows && ack.max_pairs <= hello.max_pairs &&
         ack.max_page_changes <= hello.max_page_changes && ack.credits <= hello.credits;
}

Status expect_frame(Channel& channel, Frame& frame, const char* what, Deadline deadline) {
  TESSERA_ASSIGN(const bool came, channel.receive(frame, deadline));
  if (came) return {};
  return Error::make(ErrorCode::unavailable, "{}: no {} before the deadline", channel.describe(),
                     what);
}

// Whatever else comes before it is answered.
Status answer_to_hello(Channel& channel, Frame& frame, Deadline deadline, ModelSender* sender,
                       std::chrono::milliseconds silence) {
  const Deadline begin = Clock::now();
  Deadline until = deadline;
  for (;;) {
    const Deadline silent = after(silence);
    TESSERA_ASSIGN(const bool came, channel.receive(frame, std::min(until, silent)));
    if (!came && silent < until)
      return Error::make(ErrorCode::unavailable, "{}: silent for {} ms while it should be loading",
                         channel.describe(), silence.count());
    if (!came)
      return Error::make(ErrorCode::unavailable, "{}: no answer to HELLO before the deadline",
                         channel.describe());
    const bool progress = frame.header.op == Op::progress;
    if (!progress && !ModelSender::answers(frame.header.op)) return {};
    // Frames that are there are given after the deadline too.
    if (Clock::now() >= until)
      return Error::make(ErrorCode::unavailable, "{}: no answer to HELLO before the deadline",
                         channel.describe());
    if (progress) continue;
    if (sender == nullptr)
      return Error::make(ErrorCode::unsupported,
                         "{}: the worker has no model file and is not to be sent one",
                         channel.describe());
    TESSERA_TRY(sender->answer(channel, frame));
    const auto grown = deadline + std::chrono::seconds(sender->sent() / kLeastTransferRate);
    until = sender->done() ? after(deadline - begin)
                           : std::min<Deadline>(grown, after(sender->patience()));
  }
}

}  // namespace

HandshakeReply judge(const Hello& hello, const WorkerOffer& offer) {
  const std::uint16_t version = std::min(hello.version_max, offer.version_max);
  if (version < std::max(hello.version_min, offer.version_min))
    return Refuse{
        .reason = RefuseReason::version, .need = hello.version_min, .have = offer.version_max};
  if ((offer.roles & role_bit(hello.role)) == 0) return refuse(RefuseReason::role);
  if (!offer.receives && hello.model != offer.model) return refuse(RefuseReason::model);
  if (!offer.receives && hello.dims != offer.dims) return refuse(RefuseReason::dims);
  HelloAck ack{.version = version,
               .credits = std::min(hello.credits, offer.credits),
               .in_types = static_cast<std::uint8_t>(hello.in_types & offer.in_types),
               .out_types = static_cast<std::uint8_t>(hello.out_types & offer.out_types),
               .max_rows = std::min(hello.max_rows, offer.max_rows),
               .max_pairs = std::min(hello.max_pairs, offer.max_pairs),
               .max_page_changes = std::min(hello.max_page_changes, offer.max_page_changes),
               .build = offer.probe.build};
  if (hello.dims.n_embd % kInt16Block != 0) {  // a block would be of two rows
    ack.in_types &= static_cast<std::uint8_t>(~type_bit(WireType::int16));
    ack.out_types &= static_cast<std::uint8_t>(~type_bit(WireType::int16));
  }
  if (ack.in_types == 0 || ack.out_types == 0) return refuse(RefuseReason::types);
  if (ack.credits == 0)
    return Refuse{.reason = RefuseReason::limits, .need = hello.credits, .have = offer.credits};
  return ack;
}

// No frame of the other role has room for more than rows.
WireLimits agreed_limits(const Hello& hello, const HelloAck& ack) {
  return {.version = ack.version,
          .n_layer = hello.dims.n_layer,
          .n_embd = hello.dims.n_embd,
          .n_vocab = hello.dims.n_vocab,
          .n_expert = hello.dims.n_expert,
          .max_rows = ack.max_rows,
          .max_logit_rows = std::min(hello.max_logit_rows, ack.max_rows),
          .max_pairs = hello.role == Role::experts ? ack.max_pairs : 0,
          .max_page_changes = hello.role == Role::layers ? ack.max_page_changes : 0,
          .in_types = ack.in_types,
          .out_types = ack.out_types};
}

HelloAck all_granted(const Hello& hello) {
  return {.version = hello.version_max,
          .credits = hello.credits,
          .in_types = hello.in_types,
          .out_types = hello.out_types,
          .max_rows = hello.max_rows,
          .max_pairs = hello.max_pairs,
          .max_page_changes = hello.max_page_changes};
}

AttachOptions ring_sizes(const Hello& hello) {
  const auto bytes = [&](const WireLimits& limits) {
    return hello.credits * round_up(max_body_bytes(limits), kArenaAlign) + kMaxHelloBytes;
  };
  const WireLimits limits = agreed_limits(hello, all_granted(hello));
  WireLimits jobs = limits;
  jobs.out_types &= kFloatTypes;  // sums in f64 only come back
  return {.to_worker_bytes = bytes(jobs), .to_client_bytes = bytes(limits)};
}

Result<Probe> client_probe(Channel& channel, Deadline deadline) {
  TESSERA_TRY(channel.send({.op = Op::probe}, deadline));
  Frame frame;
  TESSERA_TRY(expect_frame(channel, frame, "answer to PROBE", deadline));
  if (frame.header.op == Op::refuse) {
    TESSERA_ASSIGN(const Refuse refuse, decode_refuse(frame.body()));
    return refusal_error(refuse);
  }
  if (frame.header.op != Op::probe)
    return Error::make(ErrorCode::invalid, "{}: {} where the answer to PROBE is due",
                       channel.describe(), op_name(frame.header.op));
  return decode_probe(frame.body());
}

Result<std::chrono::nanoseconds> client_round_trip(Channel& channel, Deadline deadline) {
  std::array<std::chrono::nanoseconds, 9> took;
  Frame frame;
  for (std::chrono::nanoseconds& one : took) {
    const Deadline begin = Clock::now();
    TESSERA_TRY(channel.send({.op = Op::ping}, deadline));
    TESSERA_TRY(expect_frame(channel, frame, "answer to PING", deadline));
    if (frame.header.op != Op::pong)
      return Error::make(ErrorCode::invalid, "{}: {} where the answer to PING is due",
                         channel.describe(), op_name(frame.header.op));
    one = Clock::now() - begin;
  }
  std::nth_element(took.begin(), took.begin() + took.size() / 2, took.end());
  return took[took.size() / 2];
}

Result<HandshakeReply> client_handshake(Channel& channel, const Hello& hello, Deadline deadline,
                                        ModelSender* sender, std::chrono::milliseconds silence) {
  TESSERA_TRY(
      channel.send({.version = hello.version_max, .op = Op::hello}, encode(hello), deadline));
  Frame frame;
  TESSERA_TRY(answer_to_hello(channel, frame, deadline, sender, silence));
  if (frame.header.op == Op::refuse) {
    TESSERA_ASSIGN(const Refuse refused, decode_refuse(frame.body()));
    return HandshakeReply(refused);
  }
  if (frame.header.op != Op::hello_ack)
    return Error::make(ErrorCode::invalid, "{}: {} where the answer to HELLO is due",
                       channel.describe(), op_name(frame.header.op));
  TESSERA_ASSIGN(const HelloAck ack, decode_hello_ack(frame.body()));
  if (!fits(ack, hello))
    return Error::make(ErrorCode::invalid, "{}: the worker granted more than was asked for",
                       channel.describe());
  channel.set_limits(agreed_limits(hello, ack));
  return HandshakeReply(ack);
}

Result<Agreement> worker_handshake(Channel& channel, const WorkerOffer& offer,
                                   const Prepare& prepare, Deadline deadline) {
  Frame frame;
  TESSERA_TRY(expect_frame(channel, frame, "HELLO", deadline));
  while (frame.header.op == Op::probe || frame.header.op == Op::ping) {
    if (frame.header.op == Op::probe)
      TESSERA_TRY(channel.send({.op = Op::probe}, encode(offer.probe), deadline));
    else
      TESSERA_TRY(channel.send({.op = Op::pong}, deadline));
    // Frames that are there are given after the deadline too.
    if (Clock::now() >= deadline)
      return Error::make(ErrorCode::unavailable, "{}: no HELLO before the deadline",
                         channel.describe());
    TESSERA_TRY(expect_frame(channel, frame, "HELLO", deadline));
    if (frame.header.op == Op::bye)
      return Error::make(ErrorCode::unavailable, "{}: the client only asked", channel.describe());
  }
  if (frame.header.op != Op::hello)
    return Error::make(ErrorCode::invalid, "{}: {} where HELLO is due", channel.describe(),
                       op_name(frame.header.op));
  TESSERA_ASSIGN(const Hello hello, decode_hello(frame.body()));
  HandshakeReply reply = judge(hello, offer);
  if (HelloAck* ack = std::get_if<HelloAck>(&reply)) {
    const Result<Prepared> ready = within_memory([&] {
      const LoadingBeat beat(channel, offer.progress);
      return prepare(hello, *ack);
    });
    if (ready && !ready->refused) {
      ack->memory_used = ready->memory_used;
      ack->memory_free = ready->memory_free;
      ack->credits = std::min(ack->credits, ready->credits);
      const Agreement agreement{hello, *ack};
      channel.set_limits(agreed_limits(hello, *ack));
      // Loading may have taken longer than the client's HELLO had; the client judges that.
      TESSERA_TRY(channel.send({.version = ack->version, .op = Op::hello_ack}, encode(*ack),
                               after(std::chrono::seconds(5))));
      return agreement;
    }
    const Refuse refused = ready ? *ready->refused : refuse_for(ready.error());
    log_warn("{}: {}", channel.describe(), refused.text);
    reply = refused;
  }
  const Refuse& refused = std::get<Refuse>(reply);
  return Error::make(
      ErrorCode::unsupported, "{}: a client was {}", channel.describe(),
      refuse_client(channel, refused, after(std::chrono::seconds(5)), offer.refusals));
}

}  // namespace tessera::worker
