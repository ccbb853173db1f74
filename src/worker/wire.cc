#include "worker/wire.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "worker/byte_codec.h"
#include "worker/crc32c.h"
#include "worker/job_layout.h"
#include "worker/messages.h"
#include "worker/model_messages.h"

namespace tessera::worker {
namespace {

constexpr std::size_t kChecksumAt = 60;

struct OpInfo {
  Op op;
  const char* name;
  std::uint64_t least, most;  // bytes of body; jobs and results are worked out from their counts
};

constexpr OpInfo kOps[] = {
    {Op::attach, "ATTACH", kAttachBytes, kAttachBytes},
    {Op::challenge, "CHALLENGE", kNonceBytes, kNonceBytes},
    {Op::proof, "PROOF", kProofBytes, kProofBytes},
    {Op::attached, "ATTACHED", 0, kProofBytes},
    {Op::probe, "PROBE", 0, kMaxProbeBytes},
    {Op::hello, "HELLO", kHelloFixedBytes, kMaxHelloBytes},
    {Op::hello_ack, "HELLO_ACK", kHelloAckFixedBytes + kBuildFixedBytes,
     kHelloAckFixedBytes + kMaxBuildBytes},
    {Op::refuse, "REFUSE", kRefuseFixedBytes, kRefuseFixedBytes + kMaxErrorText},
    {Op::model_info, "MODEL_INFO", 0, kModelInfoFixedBytes + kMaxModelParts* kModelPartBytes},
    {Op::model_read, "MODEL_READ", kModelReadBytes, kModelReadBytes},
    {Op::model_data, "MODEL_DATA", 0, 0},  // by the limits
    {Op::progress, "PROGRESS", 0, 0},
    {Op::compute_experts, "COMPUTE_EXPERTS", 0, 0},
    {Op::forward_layers, "FORWARD_LAYERS", 0, 0},
    {Op::result, "RESULT", 0, 0},
    {Op::cancel, "CANCEL", 0, 0},
    {Op::near, "NEAR", 0, 0},
    {Op::ping, "PING", 0, 0},
    {Op::pong, "PONG", 0, 0},
    {Op::stats, "STATS", 0, kStatsBytes},
    {Op::routed, "ROUTED", 0, 0},  // by the limits
    {Op::bye, "BYE", 0, 0},
    {Op::error, "ERROR", kErrorFixedBytes, kErrorFixedBytes + kMaxErrorText},
};

const OpInfo* find_op(Op op) {
  for (const OpInfo& info : kOps)
    if (info.op == op) return &info;
  return nullptr;
}

Error wrong_size(const FrameHeader& header, std::uint64_t want) {
  return Error::make(ErrorCode::invalid, "{} frame of {} bytes where its counts make {}",
                     op_name(header.op), header.body_bytes, want);
}

Status check_type(WireType type, std::uint8_t allowed, const char* what) {
  if ((allowed & type_bit(type)) != 0) return {};
  return Error::make(ErrorCode::invalid, "element type {} of {} was not agreed",
                     static_cast<int>(type), what);
}

Status check_counts(const FrameHeader& header, const WireLimits& limits) {
  if (header.rows == 0 || header.rows > limits.max_rows)
    return Error::make(ErrorCode::invalid, "{} with {} rows where 1 to {} were agreed",
                       op_name(header.op), header.rows, limits.max_rows);
  if (header.layer >= limits.n_layer)
    return Error::make(ErrorCode::invalid, "{} for layer {} of {}", op_name(header.op),
                       header.layer, limits.n_layer);
  return check_type(header.out_type, limits.out_types, "the result");
}

Status check_experts(const FrameHeader& header, const WireLimits& limits) {
  TESSERA_TRY(check_counts(header, limits));
  TESSERA_TRY(check_type(header.in_type, limits.in_types, "the rows"));
  if (header.items > limits.max_pairs)
    return Error::make(ErrorCode::invalid, "COMPUTE_EXPERTS with {} pairs where {} were agreed",
                       header.items, limits.max_pairs);
  const std::uint64_t want = experts_body_bytes({.rows = header.rows, .pairs = header.items},
                                                limits.n_embd, header.in_type);
  if (header.body_bytes != want) return wrong_size(header, want);
  return {};
}

Status check_forward(const FrameHeader& header, const WireLimits& limits) {
  TESSERA_TRY(check_counts(header, limits));
  if (header.in_type != WireType::none)  // a shard that embeds gets tokens alone
    TESSERA_TRY(check_type(header.in_type, limits.in_types, "the rows"));
  const std::uint64_t least =
      forward_body_bytes({.rows = header.rows, .sequences = 1}, limits.n_embd, header.in_type);
  const bool chooses = (header.flags & kFlagChoose) != 0;
  const std::uint64_t most = forward_body_bytes({.rows = header.rows,
                                                 .sequences = header.rows,
                                                 .page_changes = limits.max_page_changes,
                                                 .logit_rows = header.rows,
                                                 .state_changes = limits.max_page_changes,
                                                 .choices = chooses ? header.rows : 0,
                                                 .logit_changes = chooses ? kMostLogitChanges : 0},
                                                limits.n_embd, header.in_type);
  if (header.body_bytes < least || header.body_bytes > most)
    return Error::make(ErrorCode::invalid,
                       "FORWARD_LAYERS frame of {} bytes where its counts allow {} to {}",
                       header.body_bytes, least, most);
  return {};
}

Status check_tokens(const FrameHeader& header, const WireLimits& limits) {
  constexpr std::uint32_t kMostWords = kChosenWords + kTopTokenWords * kMostTopTokens;
  if (header.rows == 0 || header.rows > limits.max_logit_rows || header.items < kChosenWords ||
      header.items > kMostWords || header.out_type != WireType::none)
    return Error::make(ErrorCode::invalid,
                       "RESULT with tokens for {} rows in {} words where 1 to {} were agreed",
                       header.rows, header.items, limits.max_logit_rows);
  const std::uint64_t want = std::uint64_t{header.rows} * header.items * 4;
  if (header.body_bytes != want) return wrong_size(header, want);
  return {};
}

Status check_result(const FrameHeader& header, const WireLimits& limits) {
  if (header.status != JobStatus::ok) {
    if (header.body_bytes != 0) return wrong_size(header, 0);
    return {};
  }
  // Logits that nobody asked for.
  if (header.rows == 0 && header.items == 0) {
    if (header.body_bytes != 0) return wrong_size(header, 0);
    return {};
  }
  if ((header.flags & kFlagChoose) != 0) return check_tokens(header, limits);
  const bool logits = header.items == limits.n_vocab && header.items != limits.n_embd;
  const std::uint32_t most = logits ? limits.max_logit_rows : limits.max_rows;
  if (header.rows == 0 || header.rows > most)
    return Error::make(ErrorCode::invalid, "RESULT with {} rows of {} where 1 to {} were agreed",
                       header.rows, header.items, most);
  if (header.items == 0 || (header.items != limits.n_embd && header.items != limits.n_vocab))
    return Error::make(ErrorCode::invalid,
                       "RESULT with {} columns where rows have {} and logits {}", header.items,
                       limits.n_embd, limits.n_vocab);
  TESSERA_TRY(check_type(header.out_type, limits.out_types, "the result"));
  const std::uint64_t want = result_body_bytes(header.rows, header.items, header.out_type);
  if (header.body_bytes != want) return wrong_size(header, want);
  return {};
}

Status check_model_data(const FrameHeader& header, const WireLimits& limits) {
  if (limits.max_model_bytes > 0 && header.body_bytes > 0 &&
      header.body_bytes <= limits.max_model_bytes)
    return {};
  return Error::make(ErrorCode::invalid, "MODEL_DATA frame of {} bytes where {} of a file may come",
                     header.body_bytes, limits.max_model_bytes);
}

Status check_routed(const FrameHeader& header, const WireLimits& limits) {
  if (header.layer >= limits.n_layer)
    return Error::make(ErrorCode::invalid, "ROUTED of layer {} of {}", header.layer,
                       limits.n_layer);
  const std::uint64_t want = routed_bytes(limits.n_expert);
  if (header.body_bytes != 0 && header.body_bytes != want) return wrong_size(header, want);
  return {};
}

}  // namespace

const char* op_name(Op op) {
  const OpInfo* info = find_op(op);
  return info != nullptr ? info->name : "unknown op";
}

bool known_op(Op op) {
  return find_op(op) != nullptr;
}

void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) {
  std::byte* at = out.data();
  store_le(at + 0, kMagic);
  store_le(at + 4, header.version);
  store_le(at + 6, static_cast<std::uint16_t>(header.op));
  store_le(at + 8, header.sequence);
  store_le(at + 16, header.body_bytes);
  store_le(at + 24, std::uint32_t{0});
  store_le(at + 28, header.layer);
  store_le(at + 30, header.flags);
  store_le(at + 32, header.rows);
  store_le(at + 36, header.items);
  store_le(at + 40, static_cast<std::uint8_t>(header.in_type));
  store_le(at + 41, static_cast<std::uint8_t>(header.out_type));
  store_le(at + 42, static_cast<std::uint16_t>(header.status));
  store_le(at + 44, header.deadline_us);
  store_le(at + 48, header.queue_us);
  store_le(at + 52, header.compute_us);
  store_le(at + 56, header.body_sum);
  store_le(at + kChecksumAt, crc32c(out.first<kChecksumAt>()));
}

Status check_start(std::span<const std::byte> start) {
  std::array<std::byte, sizeof(kMagic)> magic;
  store_le(magic.data(), kMagic);
  const std::size_t n = std::min(start.size(), magic.size());
  if (std::equal(magic.begin(), magic.begin() + n, start.begin())) return {};
  const std::string_view text(reinterpret_cast<const char*>(start.data()), n);
  for (const std::string_view http : {"HTTP", "GET ", "HEAD", "POST"})
    if (text == http)
      return Error::make(ErrorCode::invalid, "it speaks HTTP and not the worker protocol");
  return Error::make(ErrorCode::invalid, "not a frame of the worker protocol (first bytes {:02x})",
                     fmt::join(std::vector<unsigned char>(text.begin(), text.end()), " "));
}

Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> in) {
  const std::byte* at = in.data();
  TESSERA_TRY(check_start(in));
  if (const std::uint32_t sum = crc32c(in.first<kChecksumAt>());
      sum != load_le<std::uint32_t>(at + kChecksumAt))
    return Error::make(ErrorCode::invalid,
                       "frame header's checksum is {:08x}, its bytes make {:08x}",
                       load_le<std::uint32_t>(at + kChecksumAt), sum);
  const auto in_type = load_le<std::uint8_t>(at + 40), out_type = load_le<std::uint8_t>(at + 41);
  const auto status = load_le<std::uint16_t>(at + 42);
  FrameHeader header{.version = load_le<std::uint16_t>(at + 4),
                     .op = static_cast<Op>(load_le<std::uint16_t>(at + 6)),
                     .sequence = load_le<std::uint64_t>(at + 8),
                     .body_bytes = load_le<std::uint64_t>(at + 16),
                     .layer = load_le<std::uint16_t>(at + 28),
                     .flags = load_le<std::uint16_t>(at + 30),
                     .rows = load_le<std::uint32_t>(at + 32),
                     .items = load_le<std::uint32_t>(at + 36),
                     .in_type = static_cast<WireType>(in_type),
                     .out_type = static_cast<WireType>(out_type),
                     .status = static_cast<JobStatus>(status),
                     .deadline_us = load_le<std::uint32_t>(at + 44),
                     .queue_us = load_le<std::uint32_t>(at + 48),
                     .compute_us = load_le<std::uint32_t>(at + 52),
                     .body_sum = load_le<std::uint32_t>(at + 56)};
  // An op of a later version may use these fields in its own way; it is skipped, not judged.
  if (!known_op(header.op)) return header;
  if (in_type > static_cast<int>(WireType::int16) || in_type == static_cast<int>(WireType::f64) ||
      out_type > static_cast<int>(WireType::int16))
    return Error::make(ErrorCode::invalid, "{} with element types {} and {}, which do not exist",
                       op_name(header.op), in_type, out_type);
  if (status > static_cast<int>(JobStatus::failed) || (header.flags & ~kKnownFlags) != 0 ||
      load_le<std::uint32_t>(at + 24) != 0)
    return Error::make(ErrorCode::invalid, "{} with status {}, flags {:04x} or reserved bits set",
                       op_name(header.op), status, header.flags);
  return header;
}

Status check_frame(const FrameHeader& header, const WireLimits& limits) {
  const OpInfo* info = find_op(header.op);
  if (info == nullptr) {
    if (header.body_bytes <= kMaxUnknownBody) return {};
    return Error::make(ErrorCode::invalid,
                       "frame of unknown op {} with {} bytes; at most {} are "
                       "skipped",
                       static_cast<int>(header.op), header.body_bytes, kMaxUnknownBody);
  }
  if (limits.version != 0 && header.version != limits.version)
    return Error::make(ErrorCode::invalid, "{} in version {} where {} was agreed", info->name,
                       header.version, limits.version);
  switch (header.op) {
    case Op::compute_experts:
      return check_experts(header, limits);
    case Op::forward_layers:
      return check_forward(header, limits);
    case Op::result:
      return check_result(header, limits);
    case Op::model_data:
      return check_model_data(header, limits);
    case Op::routed:
      return check_routed(header, limits);
    default:
      break;
  }
  if (header.body_bytes < info->least || header.body_bytes > info->most)
    return Error::make(ErrorCode::invalid, "{} frame of {} bytes where {} to {} are right",
                       info->name, header.body_bytes, info->least, info->most);
  return {};
}

std::uint64_t max_body_bytes(const WireLimits& limits) {
  const std::uint64_t job =
      std::max(experts_body_bytes({.rows = limits.max_rows, .pairs = limits.max_pairs},
                                  limits.n_embd, WireType::f32),
               forward_body_bytes({.rows = limits.max_rows,
                                   .sequences = limits.max_rows,
                                   .page_changes = limits.max_page_changes,
                                   .logit_rows = limits.max_rows,
                                   .state_changes = limits.max_page_changes,
                                   .choices = limits.max_rows,
                                   .logit_changes = kMostLogitChanges},
                                  limits.n_embd, WireType::f32));
  const bool wide = (limits.out_types & type_bit(WireType::f64)) != 0;
  return std::max(
      {kMaxHelloBytes, job, std::uint64_t{limits.max_model_bytes},
       result_body_bytes(limits.max_rows, limits.n_embd, wide ? WireType::f64 : WireType::f32),
       std::uint64_t{limits.max_logit_rows} * 4 * (kChosenWords + kTopTokenWords * kMostTopTokens),
       result_body_bytes(limits.max_logit_rows, limits.n_vocab, WireType::f32)});
}

}  // namespace tessera::worker
