#include "plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/checked.h"
#include "device/cpu/cpu_device.h"
#include "model/has_experts.h"
#include "plan/expert_workers.h"
#include "plan/footprint.h"
#include "plan/plan_advice.h"
#include "plan/shard_planner.h"
#include "plan/topology_advice.h"
#include "plan/turns.h"

namespace tessera {
namespace {

using Leave = ShardPlanner::Leave;

constexpr int kDefaultContext = 32768;
constexpr int kLeastContext = 512;
// Weights leave their device before a context that nobody asked for becomes shorter than this.
constexpr int kContextBeforeWeights = 4096;
// Of all sequences together: page counts stay far from the end of an int, and bytes of an int64.
constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;

Status check_options(const ModelSpec& spec, const PlanOptions& options) {
  if (options.context < 0 || options.context > spec.context_length)
    return Error::make(ErrorCode::invalid, "--ctx {}: {} was made for contexts of 1 to {} tokens",
                       options.context, spec.name.empty() ? spec.architecture : spec.name,
                       spec.context_length);
  if (options.parallel < 1 || options.parallel > kMostParallel)
    return Error::make(ErrorCode::invalid, "--parallel {}: give 1 to {} sequences",
                       options.parallel, kMostParallel);
  if (std::int64_t{options.context} * options.parallel > kMostPositions)
    return Error::make(ErrorCode::invalid,
                       "--ctx {} for --parallel {} sequences is more than {} tokens; lower one",
                       options.context, options.parallel, kMostPositions);
  if (!std::isfinite(options.prompt_ratio) || options.prompt_ratio < 0.0)
    return Error::make(ErrorCode::invalid, "--prompt-ratio {}: give 0 or more",
                       options.prompt_ratio);
  if (options.turns < 0) return Error::make(ErrorCode::invalid, "--target-turns: give 0 or more");
  if (options.prefill_chunk < 1 || options.prefill_chunk > kMostPrefillChunk)
    return Error::make(ErrorCode::invalid, "--prefill-chunk {}: give 1 to {} rows",
                       options.prefill_chunk, kMostPrefillChunk);
  return {};
}

CutBy cut_by(const Plan& plan, const PlanOptions& options) {
  if (plan.shards.size() == 1) return CutBy::nothing;
  if (!options.layer_weights.empty()) return CutBy::weights;
  return plan.shards.front().time ? CutBy::times : CutBy::bytes;
}

// Worker processes are told nothing of f32_weights: they pack what the file has, as GPUs do.
Status check_compute(const Inventory& inventory, const PlanOptions& options) {
  bool remote = !inventory.expert_workers.empty(), gpu = false;
  for (const DeviceInventory& device : inventory.devices) {
    remote |= device.remote;
    gpu |= device.kind != DeviceKind::cpu;
  }
  if (!options.f32_weights || !(remote || gpu)) return {};
  return Error::make(ErrorCode::invalid,
                     "--compute f32: {} compute in the file's own formats; use them without it",
                     remote ? "workers" : "GPUs");
}

// A worker that was sent its weights has nothing to read other experts from.
Status check_files(const ModelSpec& spec, const Inventory& inventory, const PlanOptions& options) {
  if (!has_experts(spec) || options.expert_resident.value_or(100.0) == 100.0) return {};
  for (const DeviceInventory& device : inventory.devices)
    if (!device.has_file)
      return Error::make(ErrorCode::invalid,
                         "--expert-resident: {} has no model file and holds all experts of its "
                         "layers; start it with the file",
                         device.name);
  return {};
}

}  // namespace

std::int64_t program_bytes(const Model& model) {
  constexpr std::int64_t kPerToken = 200;  // and merge, in the tokenizer's tables
  return kProgramBytes + model.spec().n_token * kPerToken;
}

bool Plan::has_gpu() const {
  return std::any_of(shards.begin(), shards.end(),
                     [](const ShardPlan& shard) { return shard.kind != DeviceKind::cpu; });
}

int Plan::threads() const {
  int threads = 0;
  for (const ShardPlan& shard : shards)
    if (shard.kind == DeviceKind::cpu && shard.here) threads += shard.threads;
  return threads;
}

int Plan::experts_host() const {
  int experts = 0;
  for (const ShardPlan& shard : shards) experts += shard.experts_host;
  return experts;
}

bool Plan::experts_leave() const {
  return std::any_of(shards.begin(), shards.end(), [](const ShardPlan& shard) {
    return !shard.remote && shard.experts_host + shard.experts_worker > 0;
  });
}

std::int64_t Plan::total_bytes() const {
  std::int64_t bytes = saturated_add(process_bytes, program ? program->connection_bytes : 0);
  for (const ShardPlan& shard : shards)
    if (!shard.remote)
      bytes = saturated_add(
          bytes, shard.kind == DeviceKind::cpu ? shard.total_bytes() : shard.process_bytes());
  return bytes;
}

namespace {

// What gives way where not all fits, step by step: tables of GPUs and experts, then other weights
// of CPU devices.
std::vector<Leave> steps(const ModelSpec& spec, const Inventory& inventory,
                         const PlanOptions& options) {
  std::vector<Leave> steps = {Leave::nothing};
  const bool tables = (!spec.tied_head || inventory.devices.size() > 1) &&
                      options.table == PlanOptions::Table::automatic &&
                      std::any_of(inventory.devices.begin(), inventory.devices.end(),
                                  ShardPlanner::may_leave_table);
  if (tables || (has_experts(spec) && options.expert_resident != 100.0))
    steps.push_back(Leave::experts);
  for (const DeviceInventory& device : inventory.devices)
    if (ShardPlanner::may_leave_weights(device)) {
      steps.push_back(Leave::weights);
      break;
    }
  return steps;
}

// Budgets above their device's memory, and budgets that are too much together. What a probe says of
// what is free changes from moment to moment, so it is the memory there is in all that counts.
std::vector<std::string> budget_warnings(const Inventory& inventory) {
  struct Share {
    std::string name;
    std::int64_t budget, total;
  };
  std::map<int, std::vector<Share>> sharing;  // that memory, with budgets
  std::int64_t host = 0;
  for (const DeviceInventory& device : inventory.devices) {
    if (device.memory == kHostMemory) host = std::max(host, device.memory_total);
    if (device.budget && device.memory_total > 0)
      sharing[device.memory].push_back({device.name, *device.budget, device.memory_total});
  }
  for (const ExpertWorkerInventory& worker : inventory.expert_workers)
    if (worker.here && worker.bounded && worker.kind == DeviceKind::cpu && host > 0)
      sharing[kHostMemory].push_back({worker.name, worker.budget, host});
  std::vector<std::string> warnings;
  for (const auto& [memory, shares] : sharing) {
    std::int64_t left = shares.front().total;
    bool each_fits = true;
    std::vector<std::string> names;
    for (const Share& share : shares) {
      if (share.budget > share.total)
        warnings.push_back(
            fmt::format("The budget of {}, {}, is more than the memory there is: {}.", share.name,
                        format_bytes(share.budget), format_bytes(share.total)));
      each_fits = each_fits && share.budget <= share.total;
      left -= std::clamp<std::int64_t>(share.budget, 0, share.total);  // cannot wrap
      names.push_back(share.name);
    }
    if (each_fits && left < 0)
      warnings.push_back(fmt::format(
          "The budgets of {} share a memory of {} and are {} more together.",
          fmt::join(names, ", "), format_bytes(shares.front().total), format_bytes(-left)));
  }
  return warnings;
}

Status check_all(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  const ModelSpec& spec = model.spec();
  TESSERA_TRY(check_options(spec, options));
  TESSERA_TRY(check_compute(inventory, options));
  TESSERA_TRY(check_files(spec, inventory, options));
  if (inventory.devices.empty()) return Error::make(ErrorCode::invalid, "no device to plan for");
  for (const DeviceInventory& device : inventory.devices)
    TESSERA_TRY(device_supports(device.kind, spec));
  return {};
}

// What plans are tried, one by one: a context that nobody asked for gives way to the budget, and at
// each step some more; and where the way to workers of experts is too much, they are left out.
std::vector<ShardPlanner::Sizes> tries(const Model& model, const Inventory& inventory,
                                       const PlanOptions& options) {
  const int most = options.context > 0 ? options.context
                                       : std::min(model.spec().context_length, kDefaultContext);
  const std::int64_t process_bytes = program_bytes(model);
  const std::vector<Leave> leaves = steps(model.spec(), inventory, options);
  std::vector<ShardPlanner::Sizes> tries;
  for (const Leave leave : leaves) {
    const bool first = leave == leaves.front(), last = leave == leaves.back();
    const int least = last ? kLeastContext : kContextBeforeWeights;
    int context = first || options.context > 0 ? most : std::min(most, kContextBeforeWeights);
    for (bool more = true; more; context /= 2) {
      tries.push_back({context, process_bytes, leave});
      more = options.context == 0 && context / 2 >= least;
    }
  }
  if (inventory.expert_workers.empty() || options.expert_workers_required) return tries;
  const std::size_t with_workers = tries.size();
  for (std::size_t i = 0; i < with_workers; ++i) {
    tries.push_back(tries[i]);
    tries.back().expert_workers = false;
  }
  return tries;
}

// Whether there is a plan. What leaves the devices only helps, and so does a shorter context: the
// last try of all has what any has, but for workers of experts that are required, for which it
// keeps memory free that a plan in which nothing leaves may use.
bool fits(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  if (!check_all(model, inventory, options)) return false;
  const std::vector<ShardPlanner::Sizes> all = tries(model, inventory, options);
  const auto fit = [&](const ShardPlanner::Sizes& sizes) {
    return ShardPlanner(model, inventory, options, sizes).fits();
  };
  if (fit(all.back())) return true;
  const auto leaves = [](const ShardPlanner::Sizes& sizes) {
    return sizes.leave != Leave::nothing;
  };
  const auto last = std::find_if(all.begin(), all.end(), leaves) - 1;
  return options.expert_workers_required && !inventory.expert_workers.empty() && fit(*last);
}

// What there is to say where no plan fits.
struct Shortage {
  std::string held;    // ShardPlanner::held()
  std::string enough;  // ShardPlanner::enough()
};

std::string left_out(const ExpertWorkerPlan& worker, bool connected) {
  if (connected)
    return fmt::format(
        "{} has no room for an expert in its {}: the host computes all that are away.",
        worker.device, format_bytes(worker.budget_bytes));
  return fmt::format(
      "{} is left out, since the way to it takes memory that is not there: the host computes all "
      "experts that are away.",
      worker.device);
}

// Ranges of one device say the same.
void add_warning(std::string line, Plan& plan) {
  if (std::find(plan.warnings.begin(), plan.warnings.end(), line) == plan.warnings.end())
    plan.warnings.push_back(std::move(line));
}

// A plan, or what lacks.
Result<Plan> plan_within(const Model& model, const Inventory& inventory, const PlanOptions& options,
                         Shortage& shortage) {
  const ModelSpec& spec = model.spec();
  TESSERA_TRY(check_all(model, inventory, options));
  Result<std::vector<ShardPlan>> shards = std::vector<ShardPlan>();
  ShardPlanner::Sizes sizes;
  Plan plan;
  const std::vector<ShardPlanner::Sizes> all = tries(model, inventory, options);
  for (std::size_t i = 0; i < all.size(); ++i) {
    sizes = all[i];
    const ShardPlanner planner(model, inventory, options, sizes);
    shards = planner.plan();
    if (shards) plan.program = planner.program(*shards);
    if (shards || shards.error().code != ErrorCode::exhausted) break;
    if (i + 1 == all.size()) shortage = {.held = planner.held(), .enough = planner.enough()};
  }
  if (!shards) return std::move(shards).error();

  plan.model = spec.name;
  plan.architecture = spec.architecture;
  plan.n_layer = spec.n_layer();
  plan.context = sizes.context;
  plan.parallel = options.parallel;
  plan.prefill_chunk = options.prefill_chunk;
  plan.max_rows = options.prefill_chunk + options.parallel;
  plan.shards = *std::move(shards);
  plan.cut_by = cut_by(plan, options);
  plan.piece_rows = plan.shards.front().layout.max_rows;
  const auto here = std::count_if(plan.shards.begin(), plan.shards.end(),
                                  [](const ShardPlan& shard) { return !shard.remote; });
  plan.expert_workers =
      plan_expert_workers(model, inventory.expert_workers, plan.shards,
                          expert_jobs(static_cast<int>(here), plan.piece_rows, options));
  plan.expert_costs = executor_costs(plan.shards, inventory.expert_workers, options);
  if (const auto& drafter = options.drafter)
    plan.drafter =
        DrafterPlan{.name = drafter->name,
                    .block_rows = drafter->block_rows,
                    .reserve = drafter_reserve(*drafter, drafter_use(spec, options, plan.context))};
  plan.kv_type = plan.shards.front().layout.kv_type;
  for (const KvGroup& group : kv_groups(spec)) plan.kv_windows.push_back(group.window);
  plan.process_bytes = sizes.process_bytes;
  plan.f32_weights = options.f32_weights;
  plan.warnings = budget_warnings(inventory);
  for (const ExpertWorkerPlan& worker : plan.expert_workers)
    if (worker.experts == 0 && plan.experts_host() > 0)
      plan.warnings.push_back(left_out(worker, sizes.expert_workers));
  for (const ShardPlan& shard : plan.shards)
    if (options.expert_stream && shard.kind != DeviceKind::cpu && !shard.remote &&
        shard.experts_host > 0 && shard.streamed_bytes == 0)
      add_warning(
          fmt::format("The host computes the experts away from {} for prompts too: there is no "
                      "memory to keep them packed for it.",
                      shard.device),
          plan);
  const int most = std::min(spec.context_length, kDefaultContext);
  if (options.context == 0 && plan.context < most)
    plan.warnings.push_back(
        fmt::format("The context is {} tokens and not {}, for want of memory; with --ctx weights "
                    "give way to it.",
                    plan.context, most));
  plan.decode_bytes_per_token =
      decode_bytes(model, {.kv_type = plan.kv_type, .f32_weights = plan.f32_weights});
  return plan;
}

}  // namespace

namespace {

Result<Plan> plan_or_advice(const Model& model, const Inventory& inventory,
                            const PlanOptions& options) {
  Shortage shortage;
  Result<Plan> plan = plan_within(model, inventory, options, shortage);
  if (plan) plan->advice = topology_advice(model, inventory, options, *plan);
  if (plan || plan.error().code != ErrorCode::exhausted) return plan;
  Shortage unread;
  const PlanAttempts attempts{
      .fits = [&](const PlanOptions& other) { return fits(model, inventory, other); },
      .plan =
          [&](const PlanOptions& other) { return plan_within(model, inventory, other, unread); }};
  return Error::make(ErrorCode::exhausted, "{}{}{}; {}", plan.error().message,
                     shortage.held.empty() ? "" : "; ", shortage.held,
                     what_would_fit(options, shortage.enough, attempts));
}

Result<Plan> plan_in_turns(const Model& model, const Inventory& inventory, PlanOptions options,
                           int turns) {
  const std::vector<double> weights = options.layer_weights;
  for (int turn = 1; turn < turns; ++turn)
    options.layer_weights.insert(options.layer_weights.end(), weights.begin(), weights.end());
  options.prompt_ratio *= turns;  // a device's ranges come one after the other with a prompt, too
  Shortage shortage;
  TESSERA_ASSIGN(Plan plan, plan_within(model, with_turns(inventory, turns), options, shortage));
  for (std::string& line : budget_warnings(inventory)) add_warning(std::move(line), plan);
  plan.turns = turns;
  if (turns >= kLeastTurnsAbreast)
    for (ShardPlan& shard : plan.shards)
      shard.layout.rows_abreast = static_cast<int>(plan.devices());
  return plan;
}

}  // namespace

Result<Plan> make_plan(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  TESSERA_TRY(check_turns(model, inventory, options.turns));
  Result<Plan> plan = plan_or_advice(model, inventory, options);
  if (!plan || options.turns == 1) return plan;
  const auto as_good = [&](const Plan& turned) {
    return turned.context >= plan->context && (plan->experts_leave() || !turned.experts_leave());
  };
  if (options.turns == 0) {
    if (plan->experts_leave()) return plan;
    for (int turns = free_turns(model, inventory, options); turns > 1; --turns)
      if (Result<Plan> turned = plan_in_turns(model, inventory, options, turns);
          turned && as_good(*turned))
        return turned;
    return plan;
  }
  Result<Plan> turned = plan_in_turns(model, inventory, options, options.turns);
  if (turned && !as_good(*turned))
    turned->warnings.push_back(fmt::format(
        "Each range of a GPU has scratch memory of its own: with --target-turns 1 {}.",
        turned->context < plan->context ? fmt::format("the context is {} tokens", plan->context)
                                        : std::string("all experts stay on the GPUs")));
  if (turned || turned.error().code != ErrorCode::exhausted) return turned;
  return Error::make(ErrorCode::exhausted, "--target-turns {}: {}; --target-turns 1 fits",
                     options.turns, turned.error().message);
}

double decode_bytes(const Model& model, const DecodeStep& step) {
  const ModelSpec& spec = model.spec();
  double bytes = 0.0;
  for (const TensorSlice& slice : model.tensors()) {
    const bool table = slice.role == TensorRole::token_embd && !spec.tied_head;
    if (table) continue;  // one row
    const BlockType type = step.f32_weights ? BlockType::F32 : slice.type;
    double read = static_cast<double>(slice.matrices) * static_cast<double>(slice.rows) *
                  static_cast<double>(row_bytes(type, slice.cols));
    if (slice.matrices > 1) {
      const int used = spec.layers[static_cast<std::size_t>(slice.layer)].moe->n_used;
      const double missed = 1.0 - used / static_cast<double>(slice.matrices);
      read *= 1.0 - std::pow(missed, step.rows);
    }
    bytes += read / step.rows;
  }
  ShardLayout one;
  one.end_layer = spec.n_layer();
  one.kv_type = step.kv_type;
  // Read and written, once a sequence.
  bytes += 2.0 * static_cast<double>(cpu_slot_bytes(spec, one)) / (step.prompt ? step.rows : 1);
  const std::vector<KvGroup> groups = kv_groups(spec);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const int window = groups[g].window;
    const int visible = window > 0 ? std::min(step.depth, window) : step.depth;
    bytes +=
        static_cast<double>(cpu_page_bytes(spec, one, static_cast<int>(g))) * visible / kPageTokens;
  }
  return bytes;
}

}  // namespace tessera
