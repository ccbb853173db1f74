#include "worker/messages.h"

#include <algorithm>

#include "worker/body_parts.h"
#include "worker/byte_codec.h"

namespace tessera::worker {
namespace {

constexpr std::uint32_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxColumns = 1 << 24;
constexpr std::uint32_t kMaxExperts = 65536;  // u16 in a pair
// Pages and positions stay far from the end of an int.
constexpr std::uint32_t kMaxPages = 1 << 28;
constexpr std::uint32_t kMaxPositions = 1 << 30;

// Of HELLO or its answer.
template <typename Wish>
bool valid_types(const Wish& wish) {
  return wish.in_types != 0 && (wish.in_types & ~kFloatTypes) == 0 && wish.out_types != 0 &&
         (wish.out_types & ~kResultTypes) == 0;
}

bool valid_dims(const ModelDims& dims) {
  return dims.n_layer > 0 && dims.n_layer <= kMaxLayers && dims.n_embd > 0 &&
         dims.n_embd <= kMaxColumns && dims.n_vocab <= kMaxColumns &&
         dims.n_expert <= kMaxExperts && dims.n_expert_used <= dims.n_expert &&
         dims.n_ff_expert <= kMaxColumns;
}

template <typename Wish>
bool valid_counts(const Wish& wish) {
  return wish.max_rows > 0 && wish.max_rows <= kMaxWireRows && wish.max_pairs <= kMaxPairs &&
         wish.max_page_changes <= kMaxPageChanges && wish.credits > 0;
}

// False where the count cannot be.
bool valid_owned(const Hello& hello, std::uint64_t bytes) {
  if (bytes == 0 && hello.role != Role::experts) return true;
  if (hello.role == Role::drafter) return false;
  return bytes ==
         std::uint64_t{hello.end_layer - hello.first_layer} * ((hello.dims.n_expert + 7) / 8);
}

void encode_layers(ByteWriter& out, const LayersPart& part) {
  out.u8(part.kv_type);
  out.u8(part.delta_form);
  out.u16(static_cast<std::uint16_t>(part.kv_pages.size()));
  out.u32(part.max_positions);
  out.u16(part.file_parts);
  out.u16(part.count_routing ? 1 : 0);
  for (const std::uint32_t pages : part.kv_pages) out.u32(pages);
  for (const std::uint16_t places : part.expert_spare) out.u16(places);
}

// False when it cannot be. `layers`: whose experts stay in memory in part.
bool decode_layers(ByteReader& in, std::uint32_t layers, LayersPart& part) {
  part.kv_type = in.u8();
  part.delta_form = in.u8();
  const std::uint16_t groups = in.u16();
  part.max_positions = in.u32();
  part.file_parts = in.u16();
  const std::uint16_t count_routing = in.u16();
  part.count_routing = count_routing == 1;
  if (groups > kMaxKvGroups || part.delta_form > 1 || part.max_positions > kMaxPositions ||
      count_routing > 1)
    return false;
  part.kv_pages.resize(groups);
  for (std::uint32_t& pages : part.kv_pages) {
    pages = in.u32();
    if (pages > kMaxPages) return false;
  }
  if (layers > kMaxLayers) return false;
  part.expert_spare.resize(layers);
  for (std::uint16_t& places : part.expert_spare) places = in.u16();
  return in.ok();
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::experts:
      return "experts";
    case Role::layers:
      return "layers";
    case Role::drafter:
      return "drafter";
  }
  return "unknown role";
}

const char* refuse_reason_name(RefuseReason reason) {
  constexpr const char* kNames[] = {"",     "version",  "model",          "dims",
                                    "role", "memory",   "types",          "limits",
                                    "busy", "draining", "authentication", "loading"};
  const auto i = static_cast<std::size_t>(reason);
  return i > 0 && i < std::size(kNames) ? kNames[i] : "unknown";
}

std::string refusal_text(const Refuse& refuse) {
  const char* reason = refuse_reason_name(refuse.reason);
  if (refuse.reason == RefuseReason::authentication)
    return fmt::format("{}: give both the same --token-file", reason);
  if (refuse.reason == RefuseReason::busy)
    return fmt::format("{}: another server is connected to it", reason);
  if (!refuse.text.empty()) return fmt::format("{}: {}", reason, refuse.text);
  if (refuse.need == 0) return fmt::format("{}; its log says why", reason);
  return fmt::format("{}; needs {}, has {}", reason, refuse.need, refuse.have);
}

Error refusal_error(const Refuse& refuse) {
  const ErrorCode code =
      refuse.reason == RefuseReason::authentication ? ErrorCode::invalid : ErrorCode::unavailable;
  return Error::make(code, "the worker refuses the connection ({})", refusal_text(refuse));
}

const char* wire_error_name(WireError code) {
  constexpr const char* kNames[] = {"",          "unknown_op", "malformed",
                                    "not_owned", "no_credit",  "internal"};
  const auto i = static_cast<std::size_t>(code);
  return i > 0 && i < std::size(kNames) ? kNames[i] : "unknown";
}

std::vector<std::byte> encode(const Attach& attach) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u8(static_cast<std::uint8_t>(attach.kind));
  for (int i = 0; i < 7; ++i) out.u8(0);
  out.bytes(attach.nonce);
  out.u64(attach.region_id);
  out.u64(attach.to_worker_bytes);
  out.u64(attach.to_client_bytes);
  out.u64(0);
  return body;
}

Result<Attach> decode_attach(std::span<const std::byte> body) {
  ByteReader in(body);
  Attach attach;
  const std::uint8_t kind = in.u8();
  for (int i = 0; i < 7; ++i) in.u8();
  read_array(in, attach.nonce);
  attach.region_id = in.u64();
  attach.to_worker_bytes = in.u64();
  attach.to_client_bytes = in.u64();
  in.u64();
  if (!in.done() || kind > static_cast<int>(AttachKind::rings)) return malformed("ATTACH");
  attach.kind = static_cast<AttachKind>(kind);
  if (attach.to_worker_bytes > kMostArenaBytes || attach.to_client_bytes > kMostArenaBytes)
    return Error::make(ErrorCode::invalid, "ATTACH with arenas of {} and {} bytes; the most is {}",
                       attach.to_worker_bytes, attach.to_client_bytes, kMostArenaBytes);
  return attach;
}

std::vector<std::byte> encode(const Hello& hello) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u16(hello.version_min);
  out.u16(hello.version_max);
  out.u8(static_cast<std::uint8_t>(hello.role));
  out.u8(hello.in_types);
  out.u8(hello.out_types);
  out.u8(0);
  out.bytes(hello.model);
  for (const std::uint32_t value :
       {hello.dims.n_layer, hello.dims.n_embd, hello.dims.n_vocab, hello.dims.n_expert,
        hello.dims.n_expert_used, hello.dims.n_ff_expert, hello.first_layer, hello.end_layer,
        hello.max_rows, hello.max_pairs, hello.max_page_changes, hello.slots, hello.max_logit_rows})
    out.u32(value);
  out.u16(hello.credits);
  out.u16(0);
  out.u32(static_cast<std::uint32_t>(hello.owned.size()));
  out.bytes(hello.owned);
  if (hello.role == Role::layers) encode_layers(out, hello.layers);
  return body;
}

Result<Hello> decode_hello(std::span<const std::byte> body) {
  ByteReader in(body);
  Hello hello;
  hello.version_min = in.u16();
  hello.version_max = in.u16();
  const std::uint8_t role = in.u8();
  hello.in_types = in.u8();
  hello.out_types = in.u8();
  in.u8();
  read_array(in, hello.model);
  for (std::uint32_t* value :
       {&hello.dims.n_layer, &hello.dims.n_embd, &hello.dims.n_vocab, &hello.dims.n_expert,
        &hello.dims.n_expert_used, &hello.dims.n_ff_expert, &hello.first_layer, &hello.end_layer,
        &hello.max_rows, &hello.max_pairs, &hello.max_page_changes, &hello.slots,
        &hello.max_logit_rows})
    *value = in.u32();
  hello.credits = in.u16();
  in.u16();
  const std::uint32_t owned = in.u32();
  const std::span<const std::byte> bits = in.bytes(owned);
  const std::uint32_t partly = owned > 0 ? hello.end_layer - hello.first_layer : 0;
  const bool whole =
      role != static_cast<int>(Role::layers) || decode_layers(in, partly, hello.layers);
  if (!whole || !in.done() || hello.version_min > hello.version_max || !valid_types(hello) ||
      role < static_cast<int>(Role::experts) || role > static_cast<int>(Role::drafter))
    return malformed("HELLO");
  hello.role = static_cast<Role>(role);
  if (!valid_dims(hello.dims) || hello.first_layer >= hello.end_layer ||
      hello.end_layer > hello.dims.n_layer)
    return Error::make(ErrorCode::invalid,
                       "HELLO for layers {} to {} of a model of {} layers of {} "
                       "columns and {} experts",
                       hello.first_layer, hello.end_layer, hello.dims.n_layer, hello.dims.n_embd,
                       hello.dims.n_expert);
  if (!valid_counts(hello) || hello.max_logit_rows > hello.max_rows)
    return Error::make(ErrorCode::invalid, "HELLO asks for {} rows, {} pairs and {} credits",
                       hello.max_rows, hello.max_pairs, hello.credits);
  if (!valid_owned(hello, owned))
    return Error::make(ErrorCode::invalid,
                       "HELLO with {} bytes of owned experts for {} layers of {}", owned,
                       hello.end_layer - hello.first_layer, hello.dims.n_expert);
  hello.owned.assign(bits.begin(), bits.end());
  return hello;
}

std::vector<std::byte> encode(const HelloAck& ack) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u16(ack.version);
  out.u16(ack.credits);
  out.u8(ack.in_types);
  out.u8(ack.out_types);
  out.u16(0);
  out.u32(ack.max_rows);
  out.u32(ack.max_pairs);
  out.u32(ack.max_page_changes);
  out.u32(0);
  out.u64(ack.memory_used);
  out.u64(ack.memory_free);
  encode_build(out, ack.build);
  return body;
}

Result<HelloAck> decode_hello_ack(std::span<const std::byte> body) {
  ByteReader in(body);
  HelloAck ack;
  ack.version = in.u16();
  ack.credits = in.u16();
  ack.in_types = in.u8();
  ack.out_types = in.u8();
  in.u16();
  ack.max_rows = in.u32();
  ack.max_pairs = in.u32();
  ack.max_page_changes = in.u32();
  in.u32();
  ack.memory_used = in.u64();
  ack.memory_free = in.u64();
  if (!decode_build(in, ack.build) || !in.done() || !valid_types(ack) || !valid_counts(ack))
    return malformed("HELLO_ACK");
  return ack;
}

std::vector<std::byte> encode(const Refuse& refuse) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  const std::span<const std::byte> text = sent_text(refuse.text, kMaxErrorText);
  out.u16(static_cast<std::uint16_t>(refuse.reason));
  out.u16(0);
  out.u32(static_cast<std::uint32_t>(text.size()));
  out.u64(refuse.need);
  out.u64(refuse.have);
  out.bytes(text);
  return body;
}

Result<Refuse> decode_refuse(std::span<const std::byte> body) {
  ByteReader in(body);
  Refuse refuse;
  const std::uint16_t reason = in.u16();
  in.u16();
  const std::uint32_t length = in.u32();
  refuse.need = in.u64();
  refuse.have = in.u64();
  const std::span<const std::byte> text = in.bytes(length);
  if (!in.done() || reason == 0 || reason > kMostRefuseReason || length > kMaxErrorText)
    return malformed("REFUSE");
  refuse.reason = static_cast<RefuseReason>(reason);
  refuse.text = printable(text);
  return refuse;
}

std::vector<std::byte> encode(const Stats& stats) {
  std::vector<std::byte> body;
  encode(stats, body);
  return body;
}

void encode(const Stats& stats, std::vector<std::byte>& body) {
  body.clear();
  ByteWriter out(body);
  for (const std::uint64_t value : {stats.jobs, stats.rows, stats.pairs, stats.expired,
                                    stats.cancelled, stats.failed, stats.busy_us})
    out.u64(value);
  for (const ExpertCountField& field : kExpertCountFields) out.u64(stats.experts.*field.value);
}

Result<Stats> decode_stats(std::span<const std::byte> body) {
  ByteReader in(body);
  Stats stats;
  for (std::uint64_t* value : {&stats.jobs, &stats.rows, &stats.pairs, &stats.expired,
                               &stats.cancelled, &stats.failed, &stats.busy_us})
    *value = in.u64();
  for (const ExpertCountField& field : kExpertCountFields) stats.experts.*field.value = in.u64();
  if (!in.done()) return malformed("STATS");
  return stats;
}

void encode_routed(std::span<const std::uint32_t> chosen, std::uint32_t n_expert,
                   std::vector<std::byte>& body) {
  body.clear();
  ByteWriter out(body);
  for (const std::uint32_t times : chosen) out.u32(times);
  body.resize(routed_bytes(n_expert));
}

Status decode_routed(std::span<const std::byte> body, std::span<std::uint32_t> chosen) {
  ByteReader in(body);
  for (std::uint32_t& times : chosen) times = in.u32();
  return in.done() ? Status() : malformed("ROUTED");
}

std::vector<std::byte> encode(const ErrorReply& error) {
  const std::span<const std::byte> text = sent_text(error.text, kMaxErrorText);
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u16(static_cast<std::uint16_t>(error.code));
  out.u16(0);
  out.u32(static_cast<std::uint32_t>(text.size()));
  out.bytes(text);
  return body;
}

Result<ErrorReply> decode_error(std::span<const std::byte> body) {
  ByteReader in(body);
  ErrorReply error;
  const std::uint16_t code = in.u16();
  in.u16();
  const std::uint32_t length = in.u32();
  const std::span<const std::byte> text = in.bytes(length);
  if (!in.done() || code == 0 || code > static_cast<int>(WireError::internal) ||
      length > kMaxErrorText)
    return malformed("ERROR");
  error.code = static_cast<WireError>(code);
  error.text = printable(text);
  return error;
}

}  // namespace tessera::worker
