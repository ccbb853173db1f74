#include <fmt/format.h>

#include "plan/plan.h"

namespace tessera {
namespace {

std::string layers_text(const ShardPlan& shard) {
  std::string text = fmt::format("{}-{}", shard.layout.first_layer, shard.layout.end_layer - 1);
  if (shard.layout.embedding) text += " +embedding";
  if (shard.layout.head) text += " +head";
  return text;
}

nlohmann::ordered_json shard_json(const ShardPlan& shard) {
  return {{"device", shard.device},
          {"threads", shard.threads},
          {"cpus", shard.cpus},
          {"first_layer", shard.layout.first_layer},
          {"end_layer", shard.layout.end_layer},
          {"embedding", shard.layout.embedding},
          {"head", shard.layout.head},
          {"experts_resident", shard.experts},
          {"kv_pages", shard.layout.kv_pages},
          {"slots", shard.layout.slots},
          {"weight_bytes", shard.weight_bytes},
          {"kv_bytes", shard.kv_bytes},
          {"recurrent_bytes", shard.recurrent_bytes},
          {"scratch_bytes", shard.scratch_bytes},
          {"handoff_bytes", shard.handoff_bytes},
          {"total_bytes", shard.total_bytes()},
          {"budget_bytes", shard.budget_bytes},
          {"free_bytes", shard.free_bytes()}};
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  constexpr double kUnit = 1024.0;
  const double value = static_cast<double>(bytes);
  if (value >= kUnit * kUnit * kUnit)
    return fmt::format("{:.2f} GiB", value / (kUnit * kUnit * kUnit));
  if (value >= kUnit * kUnit) return fmt::format("{:.1f} MiB", value / (kUnit * kUnit));
  if (value >= kUnit) return fmt::format("{:.1f} KiB", value / kUnit);
  return fmt::format("{} B", bytes);
}

nlohmann::ordered_json plan_json(const Plan& plan) {
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const ShardPlan& shard : plan.shards) shards.push_back(shard_json(shard));
  return {{"model", plan.model},
          {"architecture", plan.architecture},
          {"layers", plan.n_layer},
          {"context", plan.context},
          {"parallel", plan.parallel},
          {"prefill_chunk", plan.prefill_chunk},
          {"kv_type", kv_type_name(plan.kv_type)},
          {"kv_windows", plan.kv_windows},
          {"decode_bytes_per_token", plan.decode_bytes_per_token},
          {"process_bytes", plan.process_bytes},
          {"total_bytes", plan.total_bytes()},
          {"shards", shards}};
}

std::string plan_table(const Plan& plan) {
  std::string text = fmt::format(
      "{} ({}), {} layers; {} sequence{} of {} tokens, KV in {}, prefill chunks of {}\n\n",
      plan.model.empty() ? "model" : plan.model, plan.architecture, plan.n_layer, plan.parallel,
      plan.parallel == 1 ? "" : "s", plan.context, kv_type_name(plan.kv_type), plan.prefill_chunk);
  constexpr const char* kRow = "{:<8}{:>8}  {:<24}{:>8}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n";
  text += fmt::format(fmt::runtime(kRow), "device", "threads", "layers", "experts", "weights", "KV",
                      "recurrent", "scratch", "total", "free");
  for (const ShardPlan& shard : plan.shards)
    text += fmt::format(fmt::runtime(kRow), shard.device, shard.threads, layers_text(shard),
                        shard.experts, format_bytes(shard.weight_bytes),
                        format_bytes(shard.kv_bytes), format_bytes(shard.recurrent_bytes),
                        format_bytes(shard.scratch_bytes + shard.handoff_bytes),
                        format_bytes(shard.total_bytes()), format_bytes(shard.free_bytes()));
  text += fmt::format("\nOne token reads {}; the process peaks at about {}.\n",
                      format_bytes(static_cast<std::int64_t>(plan.decode_bytes_per_token)),
                      format_bytes(plan.total_bytes()));
  return text;
}

}  // namespace tessera
