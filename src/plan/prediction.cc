#include "plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "device/cpu/cpu_device.h"
#include "device/shard_tensors.h"

namespace tessera {
namespace {

constexpr const char* kReading = "reading weights";
constexpr const char* kExperts = "reading experts that are away";
constexpr const char* kArithmetic = "arithmetic";

// What one step of `rows` rows, each of its own sequence, takes of a shard.
struct Demand {
  double resident_bytes = 0.0;  // and what is no expert
  double away_bytes = 0.0;
  double operations = 0.0;
};

Demand demand_of(const Model& model, const ShardPlan& shard, int rows) {
  const ModelSpec& spec = model.spec();
  Demand demand;
  for (const TensorSlice& slice : model.tensors()) {
    if (!in_shard(slice, spec, shard.layout)) continue;
    // Of the embedding a row is read, and the head is needed for one row of a prompt.
    const bool head = slice.layer < 0;
    if (slice.role == TensorRole::token_embd && !(spec.tied_head && shard.layout.head)) continue;
    const double elements = static_cast<double>(slice.rows) * static_cast<double>(slice.cols);
    const BlockType type = shard.layout.f32_weights ? BlockType::F32 : slice.type;
    const double bytes =
        static_cast<double>(slice.rows) * static_cast<double>(row_bytes(type, slice.cols));
    if (slice.matrices == 1) {
      demand.resident_bytes += bytes;
      demand.operations += 2.0 * elements * (head ? 1 : rows);
      continue;
    }
    const int used = spec.layers[static_cast<std::size_t>(slice.layer)].moe->n_used;
    const double count = static_cast<double>(slice.matrices);
    const double touched = count * (1.0 - std::pow(1.0 - used / count, rows));
    demand.resident_bytes += bytes * touched * (1.0 - shard.cold_share);
    demand.away_bytes += bytes * touched * shard.cold_share;
    demand.operations += 2.0 * elements * used * rows;
  }
  ShardLayout state = shard.layout;
  demand.resident_bytes += 2.0 * static_cast<double>(cpu_slot_bytes(spec, state)) * rows;
  return demand;
}

}  // namespace

Prediction predict(const Model& model, const Plan& plan, const MeasuredSpeed& speed) {
  const int rows = plan.prefill_chunk;
  double token_s = 0.0, away_s = 0.0, chunk_s = 0.0;
  const char* chunk_bound = kReading;
  for (const ShardPlan& shard : plan.shards) {
    const double share = shard.threads / std::max(1.0, static_cast<double>(plan.threads()));
    const double bytes_per_s = speed.read_bytes_per_s * share;
    const Demand token = demand_of(model, shard, 1);
    token_s += (token.resident_bytes + token.away_bytes) / bytes_per_s;
    away_s += token.away_bytes / bytes_per_s;
    const Demand chunk = demand_of(model, shard, rows);
    const double read_s = (chunk.resident_bytes + chunk.away_bytes) / bytes_per_s;
    const double compute_s = chunk.operations / (speed.op_per_s * share);
    if (std::max(read_s, compute_s) <= chunk_s) continue;
    chunk_s = std::max(read_s, compute_s);
    chunk_bound = compute_s > read_s                        ? kArithmetic
                  : chunk.away_bytes > chunk.resident_bytes ? kExperts
                                                            : kReading;
  }
  return {.prefill = {.tokens_per_s = rows / chunk_s, .bound = chunk_bound},
          .decode = {.tokens_per_s = 1.0 / token_s,
                     .bound = 2.0 * away_s > token_s ? kExperts : kReading}};
}

std::string prediction_text(const SpeedBound& bound) {
  return fmt::format("at most {:.1f} tokens/s, bound by {}", bound.tokens_per_s, bound.bound);
}

}  // namespace tessera
