// The frame of the worker protocol: a 64-byte header, then `body_bytes` of body.
//
// All numbers are little-endian. The layout of the header is the same in every version of the
// protocol; `version` says which schema the body follows. What a peer sends is never believed: a
// header is decoded (decode_header: magic, checksum, ranges) and then held against what this end is
// ready to receive (check_frame: op, counts, types, and the exact body length that follows from
// them) before a byte of body is read or allocated.
//
//   TESSERA_ASSIGN(FrameHeader header, decode_header(raw));
//   TESSERA_TRY(check_frame(header, limits));
//   ... now header.body_bytes may be read ...
//
// docs/workers.md has the table of fields. Thread rules: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "worker/int16_blocks.h"

namespace tessera::worker {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::uint32_t kMagic = 0x50575354;  // "TSWP" in memory
inline constexpr std::uint16_t kVersionMin = 10;
inline constexpr std::uint16_t kVersionMax = 10;
inline constexpr std::uint16_t kFirstVersionWithSums = 5;  // of bodies, as body_sum() has them
inline constexpr std::uint16_t kNoLayer = 0xffff;

enum class Op : std::uint16_t {
  // Setting up a connection.
  attach = 1,     // client: which transport, first nonce
  challenge = 2,  // worker, tcp only: its nonce
  proof = 3,      // client: it knows the token
  attached = 4,   // worker: go on; over tcp with its own proof
  probe = 5,      // empty asks, with a body it answers: versions, roles, device
  // Handshake.
  hello = 16,
  hello_ack = 17,
  refuse = 18,
  // Between them, from a worker that has no model file and back (model_messages.h).
  model_info = 19,  // empty asks, with a body it answers: the model's files
  model_read = 20,  // worker: asks for bytes of a file
  model_data = 21,  // client: those bytes
  progress = 22,    // worker: it is still loading
  // Work.
  compute_experts = 32,
  forward_layers = 33,
  result = 48,
  cancel = 49,  // sequence names the job
  near = 50,    // a job comes soon; worker: of this sequence, its result
  // Health and end.
  ping = 64,
  pong = 65,
  stats = 66,   // empty asks, with a body it answers
  routed = 67,  // empty asks of a layer, with a body it answers
  bye = 68,     // the last frame
  error = 69,   // answers the frame of the same sequence
};
const char* op_name(Op op);
bool known_op(Op op);

// f64: of sums of experts alone. int16: integers whose blocks have an exponent (int16_blocks.h).
enum class WireType : std::uint8_t { none = 0, f32 = 1, f16 = 2, bf16 = 3, f64 = 4, int16 = 5 };
// Of so many values that stand together; 0 for none.
constexpr std::uint64_t wire_bytes(WireType type, std::uint64_t values) {
  switch (type) {
    case WireType::none:
      return 0;
    case WireType::f32:
      return 4 * values;
    case WireType::f16:
    case WireType::bf16:
      return 2 * values;
    case WireType::f64:
      return 8 * values;
    case WireType::int16:
      return int16_bytes(values);
  }
  return 0;
}
constexpr std::uint8_t type_bit(WireType type) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(type));
}
inline constexpr std::uint8_t kFloatTypes = type_bit(WireType::f32) | type_bit(WireType::f16) |
                                            type_bit(WireType::bf16) | type_bit(WireType::int16);
inline constexpr std::uint8_t kResultTypes = kFloatTypes | type_bit(WireType::f64);

// How a job ended; in RESULT. Anything but ok comes without a body.
enum class JobStatus : std::uint16_t { ok = 0, expired = 1, cancelled = 2, failed = 3 };

// Flags of FORWARD_LAYERS: what to answer with instead of the residual rows.
inline constexpr std::uint16_t kFlagHead = 1;    // logits
inline constexpr std::uint16_t kFlagChoose = 2;  // tokens (token_wire.h); also in the RESULT
inline constexpr std::uint16_t kKnownFlags = kFlagHead | kFlagChoose;

struct FrameHeader {
  std::uint16_t version = kVersionMax;
  Op op{};
  std::uint64_t sequence = 0;  // rises with every frame that wants an answer; the answer repeats it
  std::uint64_t body_bytes = 0;
  std::uint16_t layer = kNoLayer;
  std::uint16_t flags = 0;
  std::uint32_t rows = 0;
  std::uint32_t items = 0;  // COMPUTE_EXPERTS: pairs; RESULT: columns
  WireType in_type = WireType::none;
  WireType out_type = WireType::none;
  JobStatus status = JobStatus::ok;
  std::uint32_t deadline_us = 0;  // from arrival, since two hosts share no clock; 0: none
  std::uint32_t queue_us = 0;     // RESULT: arrival to start
  std::uint32_t compute_us = 0;   // RESULT: start to end
  std::uint32_t body_sum = 0;     // of the body (body_sum.h); its channel sees to it

  bool operator==(const FrameHeader&) const = default;
};

// What one end is ready to receive. The defaults accept set-up and control frames only; the
// handshake sets the rest.
struct WireLimits {
  std::uint16_t version = 0;  // 0: not agreed yet, any
  std::uint32_t n_layer = 0;
  std::uint32_t n_embd = 0;
  std::uint32_t n_vocab = 0;
  std::uint32_t n_expert = 0;
  std::uint32_t max_rows = 0;
  std::uint32_t max_logit_rows = 0;  // rows of a result of n_vocab columns
  std::uint32_t max_pairs = 0;
  std::uint32_t max_page_changes = 0;  // and state changes, each
  std::uint8_t in_types = 0;           // type_bit() of what a job's rows may be
  std::uint8_t out_types = 0;          // and a result's
  std::uint32_t max_model_bytes = 0;   // of a file, in one MODEL_DATA; 0: none are awaited

  bool operator==(const WireLimits&) const = default;
};

inline constexpr std::uint64_t kMaxHelloBytes = 1 << 20;
inline constexpr std::uint64_t kMaxErrorText = 512;  // in ERROR, and in REFUSE
inline constexpr std::uint32_t kMaxModelParts = 512;
inline constexpr std::uint64_t kMaxUnknownBody = 64 << 10;  // skipped, so that an op can be added
inline constexpr std::uint32_t kMaxPairs = 1 << 22;
inline constexpr std::uint32_t kMaxPageChanges = 1 << 20;
inline constexpr std::uint32_t kMaxWireRows = 65536;  // rows are u16 in a pair

// That a frame may begin so: the first bytes that came, at least one. invalid where another
// protocol is spoken, which thus shows before a whole header has come.
Status check_start(std::span<const std::byte> start);

void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out);
Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> in);

Status check_frame(const FrameHeader& header, const WireLimits& limits);

// The longest body that check_frame lets pass: what a receiver must be able to hold.
std::uint64_t max_body_bytes(const WireLimits& limits);

}  // namespace tessera::worker
