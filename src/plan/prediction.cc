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

// A shard's part of the work.
struct ShardTime {
  StepTime time;
  double away_s = 0.0;  // of a token: reading experts that are away
  const char* prompt_bound = kReading;
  const char* token_bound() const { return 2.0 * away_s > time.token_s ? kExperts : kReading; }
};

ShardTime by_machine(const Model& model, const Plan& plan, const ShardPlan& shard,
                     const MeasuredSpeed& speed) {
  const int rows = plan.prefill_chunk;
  const double share = shard.threads / std::max(1.0, static_cast<double>(plan.threads()));
  const double bytes_per_s = speed.read_bytes_per_s * share;
  const Demand token = demand_of(model, shard, 1);
  const Demand chunk = demand_of(model, shard, rows);
  const double read_s = (chunk.resident_bytes + chunk.away_bytes) / bytes_per_s;
  const double compute_s = chunk.operations / (speed.op_per_s * share);
  return {.time = {.prompt_row_s = std::max(read_s, compute_s) / rows,
                   .token_s = (token.resident_bytes + token.away_bytes) / bytes_per_s},
          .away_s = token.away_bytes / bytes_per_s,
          .prompt_bound = compute_s > read_s                        ? kArithmetic
                          : chunk.away_bytes > chunk.resident_bytes ? kExperts
                                                                    : kReading};
}

// The times add up to a prediction; what bounds it is named by the callers.
struct Totals {
  StepTime sum;
  std::size_t slowest = 0;  // shard with a prompt
  std::size_t longest = 0;  // with a token
  double away_s = 0.0;
};

Totals total(const std::vector<ShardTime>& shards) {
  Totals totals;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    totals.sum += shards[i].time;
    totals.away_s += shards[i].away_s;
    if (shards[i].time.prompt_row_s > shards[totals.slowest].time.prompt_row_s) totals.slowest = i;
    if (shards[i].time.token_s > shards[totals.longest].time.token_s) totals.longest = i;
  }
  return totals;
}

std::vector<ShardTime> shard_times(const Model& model, const Plan& plan,
                                   const std::optional<MeasuredSpeed>& speed, bool& measured) {
  const auto known = [](const ShardPlan& shard) {
    return shard.time && shard.layout.experts.empty() && shard.layout.file_parts == 0;
  };
  const auto foreign = [](const ShardPlan& shard) {
    return shard.remote || shard.kind != DeviceKind::cpu || shard.experts_worker > 0;
  };
  measured = std::all_of(plan.shards.begin(), plan.shards.end(), known);
  std::vector<ShardTime> times;
  if (!measured && (!speed || std::any_of(plan.shards.begin(), plan.shards.end(), foreign)))
    return times;
  for (const ShardPlan& shard : plan.shards)
    times.push_back(measured ? ShardTime{.time = *shard.time}
                             : by_machine(model, plan, shard, *speed));
  return times;
}

}  // namespace

std::optional<Prediction> predict(const Model& model, const Plan& plan,
                                  const std::optional<MeasuredSpeed>& speed) {
  bool measured = false;
  const std::vector<ShardTime> shards = shard_times(model, plan, speed, measured);
  if (shards.empty()) return std::nullopt;
  const Totals totals = total(shards);
  const ShardTime& slowest = shards[totals.slowest];
  Prediction prediction{
      .measured = measured,
      .prefill = {.tokens_per_s = 1.0 / slowest.time.prompt_row_s, .bound = slowest.prompt_bound},
      .decode = {.tokens_per_s = 1.0 / totals.sum.token_s,
                 .bound = 2.0 * totals.away_s > totals.sum.token_s ? kExperts : kReading},
      .fill_row_s = totals.sum.prompt_row_s - slowest.time.prompt_row_s};
  for (const ShardTime& shard : shards)
    prediction.shards.push_back({.prefill = {.tokens_per_s = 1.0 / shard.time.prompt_row_s,
                                             .bound = measured ? "" : shard.prompt_bound},
                                 .token_s = shard.time.token_s,
                                 .token_bound = measured ? "" : shard.token_bound()});
  if (!measured) return prediction;
  prediction.prefill.bound = plan.shards[totals.slowest].device;
  prediction.decode.bound =
      fmt::format("{} for {:.0f}% of each token's time", plan.shards[totals.longest].device,
                  100.0 * shards[totals.longest].time.token_s / totals.sum.token_s);
  return prediction;
}

SpeedBound predicted_prompt(const Plan& plan, int tokens) {
  const Prediction& prediction = *plan.predicted;
  const double fill_s = std::min(tokens, plan.piece_rows) * prediction.fill_row_s;
  return {.tokens_per_s = tokens / (tokens / prediction.prefill.tokens_per_s + fill_s),
          .bound = prediction.prefill.bound};
}

std::string prediction_text(const Prediction& prediction, const SpeedBound& bound) {
  return fmt::format("{} {:.1f} tokens/s, bound by {}", prediction.measured ? "about" : "at most",
                     bound.tokens_per_s, bound.bound);
}

}  // namespace tessera
