// The handshake: HELLO from the client, HELLO_ACK or REFUSE from the worker.
//
//   client                                 worker
//   client_probe(channel, deadline)        worker_handshake(channel, offer, prepare, deadline)
//   client_handshake(channel, hello, ...)
//
// The client says what it wants (role, model, layers, experts, largest job); the worker holds that
// against what it offers (judge), loads what it was asked for (prepare), and answers with what was
// agreed: the smaller of both sides' counts and the types that both know. Both ends then set the
// channel's limits to the same values.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <variant>

#include "base/result.h"
#include "worker/attach.h"
#include "worker/messages.h"
#include "worker/model_sender.h"
#include "worker/transport.h"

namespace tessera::worker {

// While a worker loads it says so every now and then, so that its client can tell a slow disk from
// a worker that hangs.
inline constexpr std::chrono::milliseconds kProgressEvery{5'000};
inline constexpr std::chrono::milliseconds kLoadingSilence{30'000};

struct WorkerOffer {
  std::uint16_t version_min = kVersionMin;
  std::uint16_t version_max = kVersionMax;
  std::uint32_t roles = 0;  // role_bit()s
  ModelDigest model{};
  ModelDims dims;
  bool receives = false;  // it has no file: prepare() takes whatever model the client has from it
  std::uint8_t in_types = kFloatTypes;
  std::uint8_t out_types = kResultTypes;
  std::uint32_t max_rows = 4096;
  std::uint32_t max_pairs = 65536;
  std::uint32_t max_page_changes = 4096;
  std::uint16_t credits = 4;
  Probe probe;  // the answer to a client that asks before it decides
  std::chrono::milliseconds progress = kProgressEvery;  // a PROGRESS while it loads
  // A client that sends nothing for so long while none of its jobs is here is given up, for the
  // next one. None: it is waited for as long as it lives.
  std::optional<std::chrono::milliseconds> client_silence;
  Refusals* refusals = nullptr;  // counts clients that are refused; may be null
};

// What the worker found out while it loaded.
struct Prepared {
  std::uint64_t memory_used = 0;
  std::uint64_t memory_free = 0;
  std::uint16_t credits = 0xffff;  // jobs that it has memory to keep; no more are granted
  std::optional<Refuse> refused;   // nothing was loaded, and the client is told so
};
// Loads what was agreed. An Error becomes a REFUSE: memory (exhausted), limits (invalid), model
// (not_found) or loading.
using Prepare = std::function<Result<Prepared>(const Hello&, const HelloAck&)>;

using HandshakeReply = std::variant<HelloAck, Refuse>;

// Pure: what a worker with this offer answers, before it loads anything.
HandshakeReply judge(const Hello& hello, const WorkerOffer& offer);

// Limits of both ends after a handshake.
WireLimits agreed_limits(const Hello& hello, const HelloAck& ack);

// The answer of a worker that grants whatever is asked for.
HelloAck all_granted(const Hello& hello);

// Rings in which `hello`'s credits all have room for the largest job and the largest result.
AttachOptions ring_sizes(const Hello& hello);

// What a worker says about itself, and how far away it is.
struct SiteProbe : Probe {
  // Over a socket, whatever the transport is later. Zero: not measured, of one that answers no
  // PING before HELLO.
  std::chrono::nanoseconds round_trip{0};
};

// Asks what the worker is and has; HELLO may follow.
Result<Probe> client_probe(Channel& channel, Deadline deadline);
// How long a frame to the worker and its answer take: the median of a few PINGs, before HELLO.
Result<std::chrono::nanoseconds> client_round_trip(Channel& channel, Deadline deadline);

// A worker that sends nothing for as long as `silence` is given up before the deadline.
// With a sender a worker without a file gets the model meanwhile. Then the deadline is one for the
// loading that follows; a transfer takes as long as it does not stall and makes kLeastTransferRate.
Result<HandshakeReply> client_handshake(Channel& channel, const Hello& hello, Deadline deadline,
                                        ModelSender* sender = nullptr,
                                        std::chrono::milliseconds silence = kLoadingSilence);

// Whose results come with what they made of experts: STATS before each.
inline bool has_experts_away(const Hello& hello) {
  return hello.role == Role::layers && !hello.owned.empty();
}

struct Agreement {
  Hello hello;
  HelloAck ack;
};
// An Error when the client was refused or did not keep to the protocol.
Result<Agreement> worker_handshake(Channel& channel, const WorkerOffer& offer,
                                   const Prepare& prepare, Deadline deadline);

}  // namespace tessera::worker
