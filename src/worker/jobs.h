// Bodies of jobs: COMPUTE_EXPERTS and FORWARD_LAYERS, and the rows that go with them.
//
//   encode_experts_head(pairs, head);              // then send {head, rows} as one body
//   TESSERA_TRY(decode_experts(frame.header, frame.body(), limits, job));
//
// decode_* is called on frames that passed check_frame; it checks every index against the limits of
// the handshake, so that what it gives can be used without a further look. The memory of the `job`
// that it is given is used again; after an error there may be anything in it. Rows are returned as
// bytes of header.in_type, in place; pack_rows and unpack_rows convert from and to f32. A value
// that is not finite is let through in rows (the model may overflow on its own) and refused in
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/token_choice.h"
#include "worker/wire.h"

namespace tessera::worker {

struct WirePair {
  std::uint16_t row;
  std::uint16_t expert;  // number in the model, not in the worker
  float weight;
  bool operator==(const WirePair&) const = default;
};

struct ExpertsBody {
  std::vector<WirePair> pairs;
  std::span<const std::byte> rows;
};

void encode_experts_head(std::span<const WirePair> pairs, std::vector<std::byte>& out);
Status decode_experts(const FrameHeader& header, std::span<const std::byte> body,
                      const WireLimits& limits, ExpertsBody& job);

// Rows of one sequence, standing together; see device/batch.h.
struct WireSequence {
  std::uint32_t rows;
  std::uint32_t first_position;
  std::uint32_t slot;
  bool operator==(const WireSequence&) const = default;
};

// From this job on, entry `index` of the page table of (slot, kv_group) is `page`; -1 clears it.
struct PageChange {
  std::uint32_t slot;
  std::uint16_t kv_group;
  std::uint32_t index;
  std::int32_t page;
  bool operator==(const PageChange&) const = default;
};

// A change of state before the job's rows, in order: reset slot `to`, copy slot `from` to `to`,
// copy page `from` of a KV group to page `to`.
struct WireStateChange {
  enum class Kind : std::uint16_t { reset_slot = 0, copy_slot = 1, copy_page = 2 };
  Kind kind{};
  std::uint16_t kv_group = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool operator==(const WireStateChange&) const = default;
};

struct ForwardBody {
  std::vector<WireStateChange> state_changes;
  std::vector<std::int32_t> tokens;  // one per row
  std::vector<WireSequence> sequences;
  std::vector<PageChange> page_changes;
  std::vector<std::uint32_t> logit_rows;  // rising
  std::vector<TokenChoice> choices;       // with kFlagChoose: one for each of these
  std::vector<LogitChange> logit_changes;
  std::span<const std::byte> rows;  // empty when the shard embeds the tokens itself
  std::vector<bool> seen_slots;     // for decode_forward's own use
};

// What bounds a FORWARD_LAYERS beyond WireLimits.
struct ForwardLimits {
  std::uint32_t slots = 0;
  std::vector<std::uint32_t> kv_pages;  // pages of each KV group
  std::uint32_t max_positions = 0;
};

void encode_forward_head(const ForwardBody& job, std::vector<std::byte>& out);
Status decode_forward(const FrameHeader& header, std::span<const std::byte> body,
                      const WireLimits& limits, const ForwardLimits& forward, ForwardBody& job);

// `out` has wire_bytes(type, number of values). bf16, f16 and int16 round to nearest even;
// f16 keeps finite values finite.
void pack_rows(std::span<const float> values, WireType type, std::span<std::byte> out);
void unpack_rows(std::span<const std::byte> bytes, WireType type, std::span<float> out);
// The same of sums of experts. f64 and unpacking lose nothing, the others round to nearest even.
void pack_sums(std::span<const double> sums, WireType type, std::span<std::byte> out);
void unpack_sums(std::span<const std::byte> bytes, WireType type, std::span<double> out);
// Neither infinite nor NaN; sums neither in f32.
bool all_finite(std::span<const float> values);
bool all_finite(std::span<const double> sums);

}  // namespace tessera::worker
