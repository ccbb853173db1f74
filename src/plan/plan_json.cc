// A plan as a value: every field of it, so that nobody has to ask elsewhere (plan_json_test.cc).
#include <fmt/format.h>

#include <cstdlib>

#include "plan/plan.h"

namespace tessera {
namespace {

nlohmann::ordered_json time_json(const std::optional<StepTime>& time) {
  if (!time) return nullptr;
  return {{"prompt_row_s", time->prompt_row_s}, {"token_s", time->token_s}};
}

nlohmann::ordered_json speed_json(double per_s) {
  if (per_s > 0.0) return per_s;
  return nullptr;  // not known
}

// "0-3,7": numbers that rise.
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0, next; i < numbers.size(); i = next) {
    for (next = i + 1; next < numbers.size() && numbers[next] == numbers[next - 1] + 1;) ++next;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (next > i + 1) text += fmt::format("-{}", numbers[next - 1]);
  }
  return text;
}

// Of the layers that have experts away, who has which.
nlohmann::ordered_json homes_json(const ShardPlan& shard, const Plan& plan) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (std::size_t l = 0; l < shard.layout.experts.size(); ++l) {
    const LayerExperts& experts = shard.layout.experts[l];
    if (experts.all_resident()) continue;
    nlohmann::ordered_json layer = {{"layer", shard.layout.first_layer + static_cast<int>(l)}};
    const auto add = [&](const std::string& who, ExpertHome home) {
      std::vector<int> numbers;
      for (std::size_t e = 0; e < experts.home.size(); ++e)
        if (experts.home[e] == home) numbers.push_back(static_cast<int>(e));
      if (!numbers.empty()) layer[who] = ranges_text(numbers);
    };
    add("resident", ExpertHome::resident());
    add("host", ExpertHome::host());
    for (std::size_t w = 0; w < plan.expert_workers.size(); ++w)
      add(plan.expert_workers[w].device, ExpertHome::worker(static_cast<int>(w)));
    if (experts.spare > 0) layer["spare"] = experts.spare;
    if (experts.streamed) layer["streamed"] = true;
    layers.push_back(std::move(layer));
  }
  return layers;
}

// By worker of experts, in the order of the plan's.
nlohmann::ordered_json uses_json(const ShardPlan& shard) {
  nlohmann::ordered_json uses = nlohmann::ordered_json::array();
  for (const ExpertWorkerUse& use : shard.worker_uses)
    uses.push_back({{"share", use.share}, {"calls_per_row", use.calls}});
  return uses;
}

const char* compute_name(bool f32_weights) {
  return f32_weights ? "f32" : "auto";
}

nlohmann::ordered_json device_rows_json(const ShardLayout& layout) {
  if (layout.table_device_rows) return *layout.table_device_rows;
  return nullptr;  // all
}

nlohmann::ordered_json shard_json(const ShardPlan& shard, const Plan& plan) {
  return {
      {"device", shard.device},
      {"remote", shard.remote},
      {"here", shard.here},
      {"kind", device_kind_name(shard.kind)},
      {"number", shard.remote ? nlohmann::ordered_json() : nlohmann::ordered_json(shard.number)},
      {"threads", shard.threads},
      {"cpus", shard.cpus},
      {"first_layer", shard.layout.first_layer},
      {"end_layer", shard.layout.end_layer},
      {"embedding", shard.layout.embedding},
      {"head", shard.layout.head},
      {"experts_resident", shard.experts},
      {"experts_host", shard.experts_host},
      {"experts_worker", shard.experts_worker},
      {"experts_away", homes_json(shard, plan)},
      {"experts_away_share", shard.cold_share},
      {"experts_worker_uses", uses_json(shard)},
      {"experts_mapped_bytes", shard.mapped_bytes},
      {"experts_locked_bytes", shard.locked_bytes},
      {"embedding_device_rows", device_rows_json(shard.layout)},
      {"embedding_host_bytes", shard.table_bytes},
      {"experts_streamed_bytes", shard.streamed_bytes},
      {"weights_file_bytes", shard.file_bytes},
      {"weights_file", shard.file_parts},
      {"weights_file_parts", shard.layout.file_parts},
      {"max_rows", shard.layout.max_rows},
      {"max_logit_rows", shard.layout.max_logit_rows},
      {"context", shard.layout.context},
      {"kept_pieces", shard.layout.kept_pieces},
      {"rows_abreast", shard.layout.rows_abreast},
      {"kv_type", kv_type_name(shard.layout.kv_type)},
      {"compute", compute_name(shard.layout.f32_weights)},
      {"kv_pages", shard.layout.kv_pages},
      {"slots", shard.layout.slots},
      {"weight_bytes", shard.weight_bytes},
      {"kv_bytes", shard.kv_bytes},
      {"recurrent_bytes", shard.recurrent_bytes},
      {"scratch_bytes", shard.scratch_bytes},
      {"handoff_bytes", shard.handoff_bytes},
      {"connection_bytes", shard.connection_bytes},
      {"offload_bytes", shard.offload_bytes},
      {"staging_bytes", shard.staging_bytes},
      {"drafter_bytes", shard.drafter_bytes},
      {"host_bytes", shard.host_bytes},
      {"total_bytes", shard.total_bytes()},
      {"budget_bytes", shard.budget_bytes},
      {"bounded", shard.bounded},
      {"free_bytes", shard.free_bytes()},
      {"measured_time", time_json(shard.time)},
      {"read_bytes_per_s", speed_json(shard.bytes_per_s)},
      {"op_per_s", speed_json(shard.op_per_s)}};
}

nlohmann::ordered_json worker_json(const ExpertWorkerPlan& worker) {
  nlohmann::ordered_json round_trip;  // null: not measured
  if (worker.call_s > 0.0) round_trip = worker.call_s * 1e6;
  return {{"device", worker.device},
          {"here", worker.here},
          {"threads", worker.threads},
          {"experts", worker.experts},
          {"job_rows", worker.job_rows},
          {"jobs", worker.jobs},
          {"round_trip_us", round_trip},
          {"kind", device_kind_name(worker.kind)},
          {"read_bytes_per_s", speed_json(worker.bytes_per_s)},
          {"op_per_s", speed_json(worker.op_per_s)},
          {"weight_bytes", worker.weight_bytes},
          {"scratch_bytes", worker.scratch_bytes},
          {"connection_bytes", worker.connection_bytes},
          {"host_bytes", worker.host_bytes},
          {"total_bytes", worker.total_bytes()},
          {"budget_bytes", worker.budget_bytes},
          {"bounded", worker.bounded},
          {"assumed", !worker.unheard.empty()},
          {"unheard", worker.unheard},
          {"free_bytes", worker.free_bytes()}};
}

nlohmann::ordered_json program_json(const std::optional<ProgramPlan>& program) {
  if (!program) return nullptr;
  nlohmann::ordered_json budget;  // null: not known
  if (program->budget_bytes) budget = *program->budget_bytes;
  return {{"program_bytes", program->program_bytes},
          {"connection_bytes", program->connection_bytes},
          {"gpu_bytes", program->gpu_bytes},
          {"total_bytes", program->total_bytes()},
          {"budget_bytes", budget}};
}

nlohmann::ordered_json costs_json(const ExecutorCosts& one) {
  return {{"executor", one.executor},
          {"call_us", one.costs.call_s * 1e6},
          {"call_measured", one.costs.call_measured},
          {"bytes_per_s", one.costs.bytes_per_s},
          {"speed_measured", one.costs.speed_measured}};
}

nlohmann::ordered_json drafter_json(const std::optional<DrafterPlan>& drafter) {
  if (!drafter) return nullptr;
  const DrafterReserve& reserve = drafter->reserve;
  return {{"name", drafter->name},
          {"block_rows", drafter->block_rows},
          {"rows", reserve.rows},
          {"weight_bytes", reserve.weights},
          {"kv_bytes", reserve.kv},
          {"feature_bytes", reserve.features},
          {"scratch_bytes", reserve.scratch},
          {"total_bytes", reserve.total()}};
}

nlohmann::ordered_json prediction_json(const Plan& plan) {
  if (!plan.predicted) return nullptr;
  const auto json = [](const SpeedBound& speed) -> nlohmann::ordered_json {
    return {{"tokens_per_s", speed.tokens_per_s}, {"bound", speed.bound}};
  };
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const ShardPrediction& shard : plan.predicted->shards)
    shards.push_back({{"prefill", json(shard.prefill)},
                      {"decode", {{"s_per_token", shard.token_s}, {"bound", shard.token_bound}}}});
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const ExpertWorkerPrediction& worker : plan.predicted->expert_workers)
    workers.push_back({{"calls_per_token", worker.calls},
                       {"bytes_per_token", worker.bytes},
                       {"s_per_token", worker.token_s}});
  return {{"measured", plan.predicted->measured},
          {"prefill", json(plan.predicted->prefill)},
          {"decode", json(plan.predicted->decode)},
          {"fill_s_per_row", plan.predicted->fill_row_s},
          {"shards", shards},
          {"expert_workers", workers}};
}

// Six digits are more than any of these figures is good for.
void drop_noise(nlohmann::ordered_json& json) {
  if (json.is_number_float()) {
    json = std::strtod(fmt::format("{:.6g}", json.get<double>()).c_str(), nullptr);
  } else if (json.is_structured()) {
    for (nlohmann::ordered_json& part : json) drop_noise(part);
  }
}

nlohmann::ordered_json whole_json(const Plan& plan) {
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const ShardPlan& shard : plan.shards) shards.push_back(shard_json(shard, plan));
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const ExpertWorkerPlan& worker : plan.expert_workers) workers.push_back(worker_json(worker));
  nlohmann::ordered_json costs = nlohmann::ordered_json::array();
  for (const ExecutorCosts& one : plan.expert_costs) costs.push_back(costs_json(one));
  return {{"model", plan.model},
          {"architecture", plan.architecture},
          {"layers", plan.n_layer},
          {"context", plan.context},
          {"parallel", plan.parallel},
          {"prefill_chunk", plan.prefill_chunk},
          {"max_rows", plan.max_rows},
          {"piece_rows", plan.piece_rows},
          {"kv_type", kv_type_name(plan.kv_type)},
          {"compute", compute_name(plan.f32_weights)},
          {"kv_windows", plan.kv_windows},
          {"decode_bytes_per_token", plan.decode_bytes_per_token},
          {"process_bytes", plan.process_bytes},
          {"total_bytes", plan.total_bytes()},
          {"cut_by", cut_by_name(plan.cut_by)},
          {"unmeasured", plan.unmeasured},
          {"predicted", prediction_json(plan)},
          {"warnings", plan.warnings},
          {"advice", plan.advice},
          {"turns", plan.turns},
          {"shards", shards},
          {"expert_workers", workers},
          {"program", program_json(plan.program)},
          {"expert_costs", costs},
          {"drafter", drafter_json(plan.drafter)}};
}

}  // namespace

nlohmann::ordered_json plan_json(const Plan& plan) {
  nlohmann::ordered_json json = whole_json(plan);
  drop_noise(json);
  return json;
}

}  // namespace tessera
