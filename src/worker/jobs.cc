#include "worker/jobs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "quant/half.h"
#include "worker/byte_codec.h"
#include "worker/job_layout.h"
#include "worker/token_wire.h"

namespace tessera::worker {
namespace {

constexpr std::size_t kSumsAtATime = 256;
static_assert(kSumsAtATime % kInt16Block == 0, "parts of sums are whole blocks");

Status check_sequences(ForwardBody& job, std::uint32_t rows, const ForwardLimits& limits) {
  std::vector<bool>& seen = job.seen_slots;
  seen.assign(limits.slots, false);
  std::uint64_t covered = 0;
  for (const WireSequence& sequence : job.sequences) {
    const std::uint64_t end = std::uint64_t{sequence.first_position} + sequence.rows;
    if (sequence.rows == 0 || end > limits.max_positions || sequence.slot >= limits.slots)
      return Error::make(ErrorCode::invalid,
                         "FORWARD_LAYERS with {} rows from position {} in slot {}; there are {} "
                         "positions and {} slots",
                         sequence.rows, sequence.first_position, sequence.slot,
                         limits.max_positions, limits.slots);
    if (seen[sequence.slot])
      return Error::make(ErrorCode::invalid, "FORWARD_LAYERS names slot {} twice", sequence.slot);
    seen[sequence.slot] = true;
    covered += sequence.rows;
  }
  if (covered != rows)
    return Error::make(ErrorCode::invalid, "FORWARD_LAYERS whose sequences have {} of {} rows",
                       covered, rows);
  return {};
}

Status check_page_changes(const ForwardBody& job, const ForwardLimits& limits) {
  for (const PageChange& change : job.page_changes) {
    const bool known = change.slot < limits.slots && change.kv_group < limits.kv_pages.size() &&
                       change.index < limits.max_positions;
    if (!known || change.page < -1 ||
        change.page >= static_cast<std::int64_t>(limits.kv_pages[change.kv_group]))
      return Error::make(ErrorCode::invalid,
                         "FORWARD_LAYERS puts page {} at entry {} of KV group {} of slot {}",
                         change.page, change.index, change.kv_group, change.slot);
  }
  return {};
}

Status check_state_changes(const ForwardBody& job, const ForwardLimits& limits) {
  for (const WireStateChange& change : job.state_changes) {
    std::uint32_t most = limits.slots;
    if (change.kind == WireStateChange::Kind::copy_page)
      most = change.kv_group < limits.kv_pages.size() ? limits.kv_pages[change.kv_group] : 0;
    if (change.kind > WireStateChange::Kind::copy_page || change.from >= most || change.to >= most)
      return Error::make(ErrorCode::invalid,
                         "FORWARD_LAYERS with state change {} from {} to {} of {} (KV group {})",
                         static_cast<int>(change.kind), change.from, change.to, most,
                         change.kv_group);
  }
  return {};
}

Status check_logit_rows(const ForwardBody& job, std::uint32_t rows) {
  for (std::size_t i = 0; i < job.logit_rows.size(); ++i) {
    if (job.logit_rows[i] >= rows || (i > 0 && job.logit_rows[i] <= job.logit_rows[i - 1]))
      return Error::make(ErrorCode::invalid, "FORWARD_LAYERS wants logits of row {} of {}",
                         job.logit_rows[i], rows);
  }
  return {};
}

}  // namespace

void encode_experts_head(std::span<const WirePair> pairs, std::vector<std::byte>& out) {
  out.resize(pairs.size() * kPairBytes);
  std::byte* at = out.data();
  for (const WirePair& pair : pairs) {
    store_le(at, pair.row);
    store_le(at + 2, pair.expert);
    store_le(at + 4, std::bit_cast<std::uint32_t>(pair.weight));
    at += kPairBytes;
  }
}

Status decode_experts(const FrameHeader& header, std::span<const std::byte> body,
                      const WireLimits& limits, ExpertsBody& job) {
  const ExpertsCounts counts{.rows = header.rows, .pairs = header.items};
  CHECK(body.size() == experts_body_bytes(counts, limits.n_embd, header.in_type),
        "the frame was not checked");
  job.pairs.resize(header.items);
  const std::byte* at = body.data();
  for (WirePair& pair : job.pairs) {
    pair = {load_le<std::uint16_t>(at), load_le<std::uint16_t>(at + 2),
            std::bit_cast<float>(load_le<std::uint32_t>(at + 4))};
    at += kPairBytes;
    if (pair.row >= header.rows || pair.expert >= limits.n_expert || !std::isfinite(pair.weight))
      return Error::make(ErrorCode::invalid,
                         "COMPUTE_EXPERTS with row {} of {}, expert {} of {}, weight {}", pair.row,
                         header.rows, pair.expert, limits.n_expert, pair.weight);
  }
  job.rows = body.subspan(header.items * kPairBytes);
  return {};
}

void encode_forward_head(const ForwardBody& job, std::vector<std::byte>& out) {
  out.clear();
  ByteWriter writer(out);
  writer.u32(static_cast<std::uint32_t>(job.sequences.size()));
  writer.u32(static_cast<std::uint32_t>(job.page_changes.size()));
  writer.u32(static_cast<std::uint32_t>(job.logit_rows.size()));
  writer.u32(static_cast<std::uint32_t>(job.state_changes.size()));
  writer.u32(static_cast<std::uint32_t>(job.logit_changes.size()));
  writer.u32(0);
  for (const WireStateChange& change : job.state_changes) {
    writer.u16(static_cast<std::uint16_t>(change.kind));
    writer.u16(change.kv_group);
    writer.u32(change.from);
    writer.u32(change.to);
    writer.u32(0);
  }
  for (const std::int32_t token : job.tokens) writer.i32(token);
  for (const WireSequence& sequence : job.sequences) {
    writer.u32(sequence.rows);
    writer.u32(sequence.first_position);
    writer.u32(sequence.slot);
    writer.u32(0);
  }
  for (const PageChange& change : job.page_changes) {
    writer.u32(change.slot);
    writer.u16(change.kv_group);
    writer.u16(0);
    writer.u32(change.index);
    writer.i32(change.page);
  }
  for (const std::uint32_t row : job.logit_rows) writer.u32(row);
  write_choices(writer, {job.choices, job.logit_changes});
}

Status decode_forward(const FrameHeader& header, std::span<const std::byte> body,
                      const WireLimits& limits, const ForwardLimits& forward, ForwardBody& job) {
  ByteReader in(body);
  ForwardCounts counts{.rows = header.rows,
                       .sequences = in.u32(),
                       .page_changes = in.u32(),
                       .logit_rows = in.u32(),
                       .state_changes = in.u32()};
  counts.logit_changes = in.u32();
  in.u32();
  if ((header.flags & kFlagChoose) != 0) counts.choices = counts.logit_rows;
  // The counts are held against the length before anything of their size is made.
  if (counts.sequences > counts.rows || counts.logit_rows > counts.rows ||
      counts.logit_rows > limits.max_logit_rows || counts.page_changes > limits.max_page_changes ||
      counts.state_changes > limits.max_page_changes || counts.logit_changes > kMostLogitChanges ||
      body.size() != forward_body_bytes(counts, limits.n_embd, header.in_type))
    return Error::make(ErrorCode::invalid,
                       "FORWARD_LAYERS of {} bytes with {} rows, {} sequences, {} page changes and "
                       "{} logit rows",
                       body.size(), counts.rows, counts.sequences, counts.page_changes,
                       counts.logit_rows);
  job.state_changes.resize(counts.state_changes);
  for (WireStateChange& change : job.state_changes) {
    change.kind = static_cast<WireStateChange::Kind>(in.u16());
    change.kv_group = in.u16();
    change.from = in.u32();
    change.to = in.u32();
    in.u32();
  }
  job.tokens.resize(counts.rows);
  for (std::int32_t& token : job.tokens) {
    token = in.i32();
    if (token < 0 || static_cast<std::uint32_t>(token) >= limits.n_vocab)
      return Error::make(ErrorCode::invalid, "FORWARD_LAYERS with token {} of a vocabulary of {}",
                         token, limits.n_vocab);
  }
  job.sequences.resize(counts.sequences);
  for (WireSequence& sequence : job.sequences) {
    sequence = {in.u32(), in.u32(), in.u32()};
    in.u32();
  }
  job.page_changes.resize(counts.page_changes);
  for (PageChange& change : job.page_changes) {
    change.slot = in.u32();
    change.kv_group = in.u16();
    in.u16();
    change.index = in.u32();
    change.page = in.i32();
  }
  job.logit_rows.resize(counts.logit_rows);
  for (std::uint32_t& row : job.logit_rows) row = in.u32();
  TESSERA_TRY(read_choices(in, {counts.choices, counts.logit_changes}, limits.n_vocab, job.choices,
                           job.logit_changes));
  job.rows = in.rest();
  TESSERA_TRY(check_sequences(job, counts.rows, forward));
  TESSERA_TRY(check_state_changes(job, forward));
  TESSERA_TRY(check_page_changes(job, forward));
  return check_logit_rows(job, counts.rows);
}

namespace {

// What is finite stays so: a sum beyond f16's range would be lost for whoever computes it.
std::uint16_t to_half(float value) {
  constexpr float kMost = 65504.0f;
  return float_to_half(std::isfinite(value) ? std::clamp(value, -kMost, kMost) : value);
}

}  // namespace

void pack_rows(std::span<const float> values, WireType type, std::span<std::byte> out) {
  CHECK(out.size() == wire_bytes(type, values.size()));
  if (out.empty()) return;
  if (type == WireType::f32) {
    static_assert(std::endian::native == std::endian::little, "rows are copied as they lie");
    std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  if (type == WireType::int16) return pack_int16(values, out);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_u16(out.data() + 2 * i,
              type == WireType::f16 ? to_half(values[i]) : float_to_bf16(values[i]));
}

void unpack_rows(std::span<const std::byte> bytes, WireType type, std::span<float> out) {
  CHECK(bytes.size() == wire_bytes(type, out.size()));
  if (out.empty()) return;
  if (type == WireType::f32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  if (type == WireType::int16) return unpack_int16(bytes, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint16_t bits = load_u16(bytes.data() + 2 * i);
    out[i] = type == WireType::f16 ? half_to_float(bits) : bf16_to_float(bits);
  }
}

void pack_sums(std::span<const double> sums, WireType type, std::span<std::byte> out) {
  CHECK(out.size() == wire_bytes(type, sums.size()));
  if (out.empty()) return;
  if (type == WireType::f64) {
    static_assert(std::endian::native == std::endian::little, "sums are copied as they lie");
    std::memcpy(out.data(), sums.data(), out.size());
    return;
  }
  std::array<float, kSumsAtATime> part;
  for (std::size_t i = 0; i < sums.size(); i += part.size()) {
    const std::size_t n = std::min(part.size(), sums.size() - i);
    for (std::size_t j = 0; j < n; ++j) part[j] = static_cast<float>(sums[i + j]);
    pack_rows(std::span(part).first(n), type,
              out.subspan(wire_bytes(type, i), wire_bytes(type, n)));
  }
}

void unpack_sums(std::span<const std::byte> bytes, WireType type, std::span<double> out) {
  CHECK(bytes.size() == wire_bytes(type, out.size()));
  if (out.empty()) return;
  if (type == WireType::f64) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  std::array<float, kSumsAtATime> part;
  for (std::size_t i = 0; i < out.size(); i += part.size()) {
    const std::size_t n = std::min(part.size(), out.size() - i);
    unpack_rows(bytes.subspan(wire_bytes(type, i), wire_bytes(type, n)), type,
                std::span(part).first(n));
    std::copy_n(part.begin(), n, out.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000u;  // all ones: infinite or NaN
  std::uint32_t found = 0;                          // without a way out, so that it is vectorised
  for (const float value : values)
    found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  return found == 0;
}

bool all_finite(std::span<const double> sums) {
  bool all = true;  // without a way out, so that it is vectorised; NaN compares as false
  for (const double sum : sums) all &= std::abs(sum) <= double{std::numeric_limits<float>::max()};
  return all;
}

}  // namespace tessera::worker
