// Bodies of the set-up, handshake and control frames: one struct each, with encode and decode.
//
//   std::vector<std::byte> body = encode(hello);
//   TESSERA_ASSIGN(Hello hello, decode_hello(frame.body()));
//
// decode_* checks everything that can be checked without knowing the model: lengths, enumerations,
// ranges, and that nothing is left over. Whether a peer fits this end's model is the handshake's
// business (handshake.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "experts/expert_metrics.h"
#include "worker/probe.h"
#include "worker/wire.h"

namespace tessera::worker {

enum class Role : std::uint8_t { experts = 1, layers = 2, drafter = 3 };
const char* role_name(Role role);
constexpr std::uint32_t role_bit(Role role) {
  return 1u << static_cast<unsigned>(role);
}

// --- Connection set-up ---

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kAttachBytes = 72;
using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// The most that ATTACH may name of each: rings are made by the client, which takes their memory.
inline constexpr std::uint64_t kMostArenaBytes = std::uint64_t{4} << 30;

enum class AttachKind : std::uint8_t { stream = 0, rings = 1 };

// With kind rings, a sealed memory file comes along as a descriptor (ring_memory.h).
struct Attach {
  AttachKind kind = AttachKind::stream;
  Nonce nonce{};
  std::uint64_t region_id = 0;        // also in the region, so that another one is found out
  std::uint64_t to_worker_bytes = 0;  // arena for bodies from client to worker
  std::uint64_t to_client_bytes = 0;  // and back
  bool operator==(const Attach&) const = default;
};

// --- Handshake ---

struct ModelDims {
  std::uint32_t n_layer = 0;
  std::uint32_t n_embd = 0;
  std::uint32_t n_vocab = 0;
  std::uint32_t n_expert = 0;
  std::uint32_t n_expert_used = 0;
  std::uint32_t n_ff_expert = 0;
  bool operator==(const ModelDims&) const = default;
};

// Role layers: what the shard holds besides its weights.
struct LayersPart {
  std::uint8_t kv_type = 0;             // as KvType
  std::uint8_t delta_form = 0;          // 0 recurrent, 1 chunked
  std::uint32_t max_positions = 0;      // of a sequence
  std::vector<std::uint32_t> kv_pages;  // of each KV group
  std::uint16_t file_parts = 0;         // ShardLayout::file_parts
  bool count_routing = false;           // the client will ask which experts are chosen (ROUTED)
  // Of each layer of the range, where Hello::owned says which experts stay in memory: places beside
  // them for experts that come while the model serves.
  std::vector<std::uint16_t> expert_spare;
  bool operator==(const LayersPart&) const = default;
};
inline constexpr std::size_t kMaxKvGroups = 64;

struct Hello {
  std::uint16_t version_min = kVersionMin;
  std::uint16_t version_max = kVersionMax;
  Role role = Role::experts;
  std::uint8_t in_types = kFloatTypes;   // type_bit()s that the client may send
  std::uint8_t out_types = kFloatTypes;  // and wants back (kResultTypes)
  ModelDigest model{};
  ModelDims dims;
  std::uint32_t first_layer = 0;  // layers [first, end) that the worker is to hold
  std::uint32_t end_layer = 0;
  std::uint32_t max_rows = 0;
  std::uint32_t max_pairs = 0;
  std::uint32_t max_page_changes = 0;
  std::uint32_t slots = 0;           // role layers: sequence slots
  std::uint32_t max_logit_rows = 0;  // role layers: rows of one answer with logits
  std::uint16_t credits = 1;
  // The experts that the worker is to hold (owned_experts.h). Role layers: empty for all.
  std::vector<std::byte> owned;
  LayersPart layers;  // role layers
  bool operator==(const Hello&) const = default;
};
inline constexpr std::size_t kHelloFixedBytes = 100;

struct HelloAck {
  std::uint16_t version = kVersionMax;
  std::uint16_t credits = 1;  // jobs that may be under way at once
  std::uint8_t in_types = 0;
  std::uint8_t out_types = 0;
  std::uint32_t max_rows = 0;
  std::uint32_t max_pairs = 0;
  std::uint32_t max_page_changes = 0;
  std::uint64_t memory_used = 0;  // bytes on the worker's device
  std::uint64_t memory_free = 0;
  WorkerBuild build;  // what it computes with now, perhaps not that of its PROBE
  bool operator==(const HelloAck&) const = default;
};
inline constexpr std::size_t kHelloAckFixedBytes = 40;

enum class RefuseReason : std::uint16_t {
  version = 1,
  model = 2,  // another file
  dims = 3,   // the same digest and other dimensions: a defect on one side
  role = 4,
  memory = 5,
  types = 6,
  limits = 7,  // need, have: the count in question
  busy = 8,    // it serves another client
  draining = 9,
  authentication = 10,
  loading = 11,  // what was asked for could not be loaded; the worker's log says why
};
inline constexpr std::size_t kMostRefuseReason = static_cast<std::size_t>(RefuseReason::loading);
const char* refuse_reason_name(RefuseReason reason);

struct Refuse {
  RefuseReason reason{};
  std::uint64_t need = 0;
  std::uint64_t have = 0;
  // For a person: what of the client's wish cannot be; at most kMaxErrorText bytes of printable
  // ASCII. Empty where the reason and the numbers say it.
  std::string text;
  bool operator==(const Refuse&) const = default;
};
inline constexpr std::size_t kRefuseFixedBytes = 24;
// For a person: "memory: layers 0-3 take 2.9 MiB, the budget is 1.0 MiB".
std::string refusal_text(const Refuse& refuse);
// Of a client: unavailable, but for a token that is not its own, which stays wrong.
Error refusal_error(const Refuse& refuse);

// --- Control ---

// Since the worker's start, but for `experts`: those are of this connection.
struct Stats {
  std::uint64_t jobs = 0;
  std::uint64_t rows = 0;
  std::uint64_t pairs = 0;
  std::uint64_t expired = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
  std::uint64_t busy_us = 0;
  ExpertCounts experts;  // of layers with experts away
  bool operator==(const Stats&) const = default;
};
inline constexpr std::size_t kStatsBytes = 56 + sizeof(ExpertCounts);

// ROUTED: how often each expert of a layer was chosen since that was last told on this connection.
// A layer with fewer experts than another of the model has zeros in their place.
constexpr std::uint64_t routed_bytes(std::uint64_t n_expert) {
  return n_expert * sizeof(std::uint32_t);
}
void encode_routed(std::span<const std::uint32_t> chosen, std::uint32_t n_expert,
                   std::vector<std::byte>& out);
// `chosen` has a place for each expert.
Status decode_routed(std::span<const std::byte> body, std::span<std::uint32_t> chosen);

enum class WireError : std::uint16_t {
  unknown_op = 1,
  malformed = 2,  // the body contradicts itself or the handshake
  not_owned = 3,  // an expert or layer that this worker does not hold
  no_credit = 4,
  internal = 5,
};
const char* wire_error_name(WireError code);

struct ErrorReply {
  WireError code{};
  std::string text;  // for a person; at most kMaxErrorText bytes of printable ASCII
  bool operator==(const ErrorReply&) const = default;
};
inline constexpr std::size_t kErrorFixedBytes = 8;

std::vector<std::byte> encode(const Attach& attach);
std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const HelloAck& ack);
std::vector<std::byte> encode(const Refuse& refuse);
std::vector<std::byte> encode(const Stats& stats);
void encode(const Stats& stats, std::vector<std::byte>& out);
std::vector<std::byte> encode(const ErrorReply& error);

Result<Attach> decode_attach(std::span<const std::byte> body);
Result<Hello> decode_hello(std::span<const std::byte> body);
Result<HelloAck> decode_hello_ack(std::span<const std::byte> body);
Result<Refuse> decode_refuse(std::span<const std::byte> body);
Result<Stats> decode_stats(std::span<const std::byte> body);
Result<ErrorReply> decode_error(std::span<const std::byte> body);

}  // namespace tessera::worker
