#include "cli/loading.h"

#include <algorithm>
#include <filesystem>

#include "base/environment.h"
#include "base/log.h"
#include "cli/dense_model.h"
#include "cli/expert_costs.h"
#include "cli/expert_workers.h"
#include "cli/find_workers.h"
#include "cli/machine_file.h"
#include "cli/placement_options.h"
#include "cli/progress.h"
#include "cli/stand_ins.h"
#include "cli/worker_sites.h"
#include "model/synth.h"
#include "plan/step_rows.h"
#include "worker/remote_shard.h"

namespace tessera::cli {
namespace {

// Its name changes when the file that the generator writes does.
constexpr const char* kSyntheticName = "synthetic-1.gguf";

DeviceOptions device_options(const Config& config) {
  DeviceOptions options = opening_options(config);
  options.chunked_delta = config.text("placement.delta_form") == "chunked";
  return options;
}

Result<DeviceOptions> device_options(const Config& config, const ExpertRuntime& experts) {
  DeviceOptions options = device_options(config);
  TESSERA_ASSIGN(options.experts.options, expert_options(config));
  options.experts.metrics = experts.metrics.get();
  options.experts.counts = experts.counts.get();
  return options;
}

Result<PlanOptions> plan_options(const Config& config, const Placement& placement,
                                 const LoadNeeds& needs) {
  PlanOptions options;
  const int context = config.small("kv.ctx");
  const int parallel = config.small("engine.parallel");
  options.context = context > 0 ? context : needs.context;
  options.parallel = parallel > 0 ? parallel : needs.parallel;
  options.logit_rows = needs.logit_rows;
  if (config.text("kv.type") != "auto") {
    TESSERA_ASSIGN(options.kv_type, parse_kv_type(config.text("kv.type")));
  }
  options.f32_weights = config.text("placement.compute") == "f32";
  if (config.text("placement.embedding") != "auto")
    options.table = config.text("placement.embedding") == "host" ? PlanOptions::Table::host
                                                                 : PlanOptions::Table::device;
  options.lock_experts = config.text("experts.prefault") == "lock";
  options.layer_weights = placement.layer_weights;
  options.turns = config.small("placement.target_turns");
  // Without chained kernels rows are not handed over; where routing is counted no step goes ahead.
  const bool counts =
      needs.count_routing || (needs.keep_profile && !config.text("experts.profile").empty());
  if (counts || config.text("placement.gpu_graphs") != "chained")
    options.turns = std::max(1, options.turns);
  options.prompt_ratio = config.number("placement.prompt_ratio");
  options.drafter = needs.drafter;
  return options;
}

Status write_small_model(const Config& config, const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error)
    return Error::make(ErrorCode::io, "{}: cannot be made: {}", folder.string(), error.message());
  Progress progress({.what = "writing a synthetic model"});
  return write_synthetic_model(
      {.preset = "tiny", .threads = config.small("placement.threads")}, path,
      [&](std::int64_t done, std::int64_t total) { progress.update(done, total); });
}

// Of the hosts of this process's GPUs, which take turns; 1 where it has none.
int threads_beside_gpus(const Plan& plan) {
  int threads = 1;
  for (const ShardPlan& shard : plan.shards)
    if (shard.kind != DeviceKind::cpu && !shard.remote) threads = std::max(threads, shard.threads);
  return threads;
}

// The threads of this process's CPU shards; where there are none, of the host of a GPU.
ThreadTeamOptions host_team(const Plan& plan) {
  ThreadTeamOptions team{.threads = host_threads(plan)};
  if (team.threads == 0) return {.threads = threads_beside_gpus(plan)};
  for (const ShardPlan& shard : plan.shards)
    if (!shard.remote) team.cpus.insert(team.cpus.end(), shard.cpus.begin(), shard.cpus.end());
  return team;
}

// From the layers' times, or from what was measured of the machine. Where that is all that lacks,
// a quick look, but not for a command that measures it later.
Status add_prediction(const Config& config, const Model& model, const LoadNeeds& needs,
                      Plan& plan) {
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  const ThreadTeamOptions team = host_team(plan);
  const std::optional<MeasuredSpeed> saved = saved_speed(team.threads, isa);
  plan.predicted = predict(model, plan, saved);
  if (plan.predicted || saved || !unknown_speed(plan).empty()) return {};
  if (needs.measure == MeasureLayers::never) return {};
  if (const auto seen = quick_speed(team, isa, plan.total_bytes()))
    plan.predicted = predict(model, plan, seen);
  return {};
}

// A plan and the workers that it counts on.
struct PlacedModel {
  Plan plan;
  std::vector<LayerWorker> workers;
  std::vector<ExpertSite> expert_workers;
};

// More threads than cores, where a person asked for them.
void warn_of_threads(PlacedModel& placed) {
  const auto of_other = [&](const ShardPlan& shard) {
    return std::any_of(placed.workers.begin(), placed.workers.end(), [&](const LayerWorker& w) {
      return w.site.name == shard.device && !w.inventory.here;
    });
  };
  int threads = 0;
  for (const ShardPlan& shard : placed.plan.shards)
    if (shard.kind == DeviceKind::cpu && !of_other(shard)) threads += shard.threads;
  if (std::any_of(placed.plan.shards.begin(), placed.plan.shards.end(),
                  [](const ShardPlan& shard) { return shard.experts_host > 0; }))
    threads = std::max(threads, threads_beside_gpus(placed.plan));
  for (const ExpertWorkerPlan& worker : placed.plan.expert_workers)
    if (worker.here) threads += worker.threads;
  if (const int cores = usable_cores(); threads > cores)
    placed.plan.warnings.push_back(fmt::format(
        "{} threads{} share {} cores: fewer are faster.", threads,
        placed.workers.empty() && placed.expert_workers.empty() ? "" : ", workers' counted,",
        cores));
}

// Makes the shards of workers; they begin to load at once. What is given must outlive it.
RemoteShards remote_shards(const Config& config, const Model& model,
                           const std::vector<LayerWorker>& workers, int context,
                           MetricsRegistry& metrics, const ExpertRuntime& runtime = {},
                           const PlacedCost& cost = {}) {
  return [&, context, experts = runtime.metrics.get(), counts = runtime.counts.get(),
          cost](const ShardPlan& shard) -> Result<std::unique_ptr<Shard>> {
    for (const LayerWorker& worker : workers) {
      if (worker.site.name != shard.device) continue;
      const WorkerStart start{
          .model = model.file().path(), .threads = shard.threads, .budget = shard.budget_bytes};
      TESSERA_ASSIGN(auto remote, worker::RemoteShard::create(
                                      started_site(config, worker.site, start),
                                      {.layout = shard.layout,
                                       .context = context,
                                       .chunked_delta = device_options(config).chunked_delta,
                                       .experts = experts,
                                       .expert_cost = cost,
                                       .counts = counts},
                                      model, metrics));
      return std::unique_ptr<Shard>(std::move(remote));
    }
    return Error::make(ErrorCode::internal, "{} is planned for and not known", shard.device);
  };
}

// And this process behind those of them that it has room for.
RemoteShards backed_shards(RemoteShards remote, const StandIns& stand_ins,
                           const std::vector<LayerWorker>& workers) {
  return [&, remote = std::move(remote)](const ShardPlan& shard) -> Result<std::unique_ptr<Shard>> {
    TESSERA_ASSIGN(std::unique_ptr<Shard> made, remote(shard));
    const bool spawned = std::any_of(workers.begin(), workers.end(), [&](const LayerWorker& w) {
      return w.site.name == shard.device && w.site.spawn;
    });
    return stand_ins.behind(std::move(made), shard, spawned);
  };
}

// A shard to measure a device with.
OpenShard open_alone(const Config& config, const Model& model,
                     const std::vector<LayerWorker>& workers, MetricsRegistry& metrics) {
  return [&](const DeviceInventory& device,
             const ShardLayout& layout) -> Result<std::unique_ptr<Shard>> {
    Plan plan;
    plan.shards.push_back(
        {.device = device.name,
         .remote = device.remote,
         .kind = device.kind,
         .number = device.number,
         .threads = device.threads,
         .cpus = device.cpus,
         .layout = layout,
         .budget_bytes = device.budget.value_or(device.most.value_or(device.memory_free))});
    TESSERA_ASSIGN(auto shards,
                   open_shards(plan, device_options(config),
                               remote_shards(config, model, workers, layout.context, metrics)));
    return std::move(shards.front());
  };
}

// What leaves the memory of a worker with layers it reads from its file as it needs it.
Status check_prefault(const Config& config, const Plan& plan) {
  if (config.text("experts.prefault") == "off") return {};
  for (const ShardPlan& shard : plan.shards)
    if (shard.remote && shard.experts_host > 0)
      return Error::make(ErrorCode::invalid,
                         "{} {}: {} reads {} experts of its layers from its own file as it needs "
                         "them; leave this out",
                         config.name_as_given("experts.prefault"), config.text("experts.prefault"),
                         shard.device, shard.experts_host);
  return {};
}

// What experts away cost the host: measured before or, where `afresh`, now.
Status set_host_costs(const Config& config, const Model& model, const Inventory& inventory,
                      bool afresh, PlanOptions& options) {
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  auto host = host_of(model, inventory, isa);
  if (!host) return {};
  host->f32_weights = options.f32_weights;
  const auto costs = afresh ? measured_host_costs(model, *host) : saved_host_costs(model, *host);
  if (costs) options.expert_costs = *costs;
  return {};
}

// All workers of experts, and the devices with the cores that those which are started leave.
Result<Inventory> inventory_with(const Config& config, const Placement& placement,
                                 const PlacedModel& placed, const std::vector<bool>& started) {
  std::vector<WorkerInventory> workers;
  for (const LayerWorker& worker : placed.workers) workers.push_back(worker.inventory);
  for (std::size_t w = 0; w < started.size(); ++w)
    if (started[w]) workers.push_back({.threads = placed.expert_workers[w].threads});
  TESSERA_ASSIGN(Inventory inventory,
                 probe_inventory(placement, config.small("placement.threads"), workers));
  for (const ExpertSite& worker : placed.expert_workers)
    inventory.expert_workers.push_back(worker.inventory);
  return inventory;
}

// A plan by what is known without measuring, and what it is made for. A worker of experts is
// started for those that the plan gives it, so one without takes no core from the devices.
Result<Inventory> place_roughly(const Config& config, const Model& model,
                                const Placement& placement, PlanOptions& options,
                                PlacedModel& placed) {
  std::vector<bool> started(placed.expert_workers.size(), false);
  for (;;) {
    TESSERA_ASSIGN(Inventory inventory, inventory_with(config, placement, placed, started));
    TESSERA_TRY(set_host_costs(config, model, inventory, /*afresh=*/false, options));
    Result<Plan> plan = make_plan(model, inventory, options);
    bool more = false;
    for (std::size_t w = 0; w < started.size(); ++w) {
      // Where there is no plan: with fewer threads the devices need less memory.
      const bool needed = !plan || plan->expert_workers[w].experts > 0;
      if (started[w] || !needed || !placed.expert_workers[w].site.spawn) continue;
      started[w] = more = true;
    }
    if (more) continue;
    if (!plan) return std::move(plan).error();
    placed.plan = *std::move(plan);
    return inventory;
  }
}

// With fewer threads than cores a worker of experts here has cores that the devices would not have
// without it, and the advice to do without it counts on those.
bool worker_has_cores_of_its_own(const Plan& plan) {
  return std::any_of(plan.expert_workers.begin(), plan.expert_workers.end(),
                     [&](const ExpertWorkerPlan& worker) {
                       return worker.here && worker.experts > 0 &&
                              host_threads(plan) + worker.threads <= usable_cores();
                     });
}

bool on_gpus(const Placement& placement, std::span<const LayerWorker> workers) {
  return !placement.devices.empty() &&
         std::all_of(
             placement.devices.begin(), placement.devices.end(), [&](const DeviceName& name) {
               const auto worker = std::find_if(
                   workers.begin(), workers.end(),
                   [&](const LayerWorker& other) { return other.site.name == name.text(); });
               return name.gpu() ||
                      (worker != workers.end() && worker->inventory.kind != DeviceKind::cpu);
             });
}

// With as many rows a step as were asked for, else with as many as cost nothing else.
Result<Inventory> place_with_chunk(const Config& config, const Model& model,
                                   const Placement& placement, PlanOptions& options,
                                   PlacedModel& placed) {
  const int asked = config.small("engine.prefill_chunk");
  options.prefill_chunk = asked > 0 ? asked : kLeastStepRows;
  TESSERA_ASSIGN(Inventory inventory, place_roughly(config, model, placement, options, placed));
  if (asked > 0 || !on_gpus(placement, placed.workers)) return inventory;
  const Plan least = placed.plan;
  for (const int rows : step_rows(least)) {
    options.prefill_chunk = rows;
    Result<Inventory> larger = place_roughly(config, model, placement, options, placed);
    if (larger && rows_cost_little(placed.plan, least)) return larger;
  }
  options.prefill_chunk = kLeastStepRows;
  placed.plan = least;
  return inventory;
}

Result<PlacedModel> place_model(const Config& config, const Model& model, const LoadNeeds& needs,
                                MetricsRegistry& metrics) {
  PlacedModel placed;
  TESSERA_TRY(check_dense_model(config, model));
  TESSERA_ASSIGN(const Placement placement, placement_of(config));
  TESSERA_ASSIGN(PlanOptions options, plan_options(config, placement, needs));
  TESSERA_TRY(set_expert_plan(config, model, needs.keep_profile, options));
  TESSERA_ASSIGN(placed.workers, find_layer_workers(config, model, placement));
  TESSERA_ASSIGN(placed.expert_workers, find_expert_workers(config, model, placement));
  TESSERA_ASSIGN(Inventory inventory, place_with_chunk(config, model, placement, options, placed));
  MetricsRegistry unread;
  LayerTimesFound times =
      add_layer_times({.config = config,
                       .model = model,
                       .options = options,
                       .workers = placed.workers,
                       .metrics = metrics,
                       .measure = needs.measure},
                      open_alone(config, model, placed.workers, unread), inventory);
  const bool afresh =
      !options.expert_costs.speed_measured || config.text("placement.layer_times") == "measure";
  if (placed.plan.experts_leave() && afresh && needs.measure != MeasureLayers::never)
    TESSERA_TRY(set_host_costs(config, model, inventory, /*afresh=*/true, options));
  TESSERA_ASSIGN(placed.plan, make_plan(model, inventory, options));
  if (config.small("placement.threads") > 0 && worker_has_cores_of_its_own(placed.plan))
    placed.plan.advice.clear();
  if (placed.plan.cut_by == CutBy::times)
    for (std::string& line : times.warnings) placed.plan.warnings.push_back(std::move(line));
  placed.plan.unmeasured = std::move(times.unmeasured);
  TESSERA_TRY(check_prefault(config, placed.plan));
  TESSERA_TRY(check_expert_use(placed.expert_workers, model, placed.plan));
  TESSERA_TRY(add_prediction(config, model, needs, placed.plan));
  warn_of_threads(placed);
  return placed;
}

}  // namespace

std::string cache_folder() {
  if (const auto xdg = environment_variable("XDG_CACHE_HOME")) return *xdg + "/tessera";
  if (const auto home = environment_variable("HOME")) return *home + "/.cache/tessera";
  return (std::filesystem::temp_directory_path() / "tessera").string();
}

Result<Plan> plan_model(const Config& config, const Model& model, const LoadNeeds& needs) {
  MetricsRegistry unread;
  TESSERA_ASSIGN(PlacedModel placed, place_model(config, model, needs, unread));
  if (needs.keep_profile) tell_missing_profile(config);
  return std::move(placed.plan);
}

Result<LoadedModel> load_model(const Config& config, const Model& model, const LoadNeeds& needs,
                               MetricsRegistry& metrics) {
  LoadedModel loaded;
  TESSERA_ASSIGN(PlacedModel placed, place_model(config, model, needs, metrics));
  TESSERA_ASSIGN(loaded.experts, expert_runtime(config, model, needs.keep_profile, metrics));
  if (needs.count_routing && loaded.experts.counts == nullptr)
    loaded.experts.counts = std::make_unique<RoutingCounts>(model.spec());
  TESSERA_ASSIGN(DeviceOptions devices, device_options(config, loaded.experts));
  TESSERA_ASSIGN(const ExpertWorkers expert_workers,
                 ExpertWorkers::start(config, placed.expert_workers, model, placed.plan,
                                      devices.experts.options, metrics));
  expert_workers.give_to(devices.experts);
  for (const std::string& warning : placed.plan.warnings) log_warn("{}", warning);
  if (!placed.plan.advice.empty()) log_info("{}", placed.plan.advice);
  const StandIns stand_ins(model, placed.plan, devices, metrics);
  RemoteShards remote = remote_shards(config, model, placed.workers, placed.plan.context, metrics,
                                      loaded.experts, placed_costs(placed.plan).front());
  TESSERA_ASSIGN(auto shards,
                 open_shards(placed.plan, devices,
                             backed_shards(std::move(remote), stand_ins, placed.workers)));
  loaded.plan = std::move(placed.plan);
  Progress progress({.what = "loading"});
  TESSERA_ASSIGN(loaded.pipeline, Pipeline::load(model, loaded.plan, std::move(shards),
                                                 [&](std::int64_t done, std::int64_t total) {
                                                   progress.update(done, total);
                                                   return true;
                                                 }));
  expert_workers.await(!needs.begin_without_workers);
  loaded.pool = std::make_unique<SequencePool>(sequence_pool_layout(loaded.plan));
  return loaded;
}

Result<std::unique_ptr<LocalEngine>> start_engine(const Config& config, LoadedModel& loaded,
                                                  const text::Tokenizer& tokenizer,
                                                  MetricsRegistry& metrics) {
  const ShardLayout& layout = loaded.plan.shards.back().layout;
  const auto away = [](const ShardPlan& shard) { return !shard.layout.experts.empty(); };
  const bool any_away = std::any_of(loaded.plan.shards.begin(), loaded.plan.shards.end(), away);
  const bool on_gpu =
      std::any_of(loaded.plan.shards.begin(), loaded.plan.shards.end(),
                  [](const auto& s) { return s.kind != DeviceKind::cpu; }) ||
      std::any_of(loaded.plan.expert_workers.begin(), loaded.plan.expert_workers.end(),
                  [](const auto& worker) { return worker.on_gpu(); });
  return LocalEngine::create({.parallel = loaded.plan.parallel,
                              .max_queue = config.small("server.max_queue"),
                              .context = loaded.plan.context,
                              .prefill_chunk = loaded.plan.prefill_chunk,
                              .max_rows = loaded.plan.max_rows,
                              .max_logit_rows = layout.max_logit_rows,
                              .prompts_alone = on_gpu},
                             {.forward = *loaded.pipeline,
                              .pool = *loaded.pool,
                              .tokenizer = tokenizer,
                              .metrics = metrics,
                              .experts = any_away ? loaded.experts.metrics.get() : nullptr});
}

SamplingParams sampling_params(const Config& config) {
  const auto number = [&](std::string_view key) { return static_cast<float>(config.number(key)); };
  SamplingParams params{.temperature = number("sampling.temperature"),
                        .top_k = config.small("sampling.top_k"),
                        .top_p = number("sampling.top_p"),
                        .min_p = number("sampling.min_p"),
                        .repetition_penalty = number("sampling.repetition_penalty"),
                        .frequency_penalty = number("sampling.frequency_penalty"),
                        .presence_penalty = number("sampling.presence_penalty")};
  const std::int64_t seed = config.integer("sampling.seed");
  if (seed >= 0) params.seed = static_cast<std::uint64_t>(seed);
  return params;
}

Result<ModelPath> model_path(const Config& config) {
  if (!config.arguments().empty()) return ModelPath{config.arguments().front(), false};
  std::error_code error;
  if (std::filesystem::exists(TESSERA_BUNDLED_MODEL, error)) {
    log_info("no model was named: this is the small one that comes with Tessera");
    return ModelPath{TESSERA_BUNDLED_MODEL, false};
  }
  // The program was taken away from its source tree.
  const std::string path = cache_folder() + "/" + kSyntheticName;
  if (!std::filesystem::exists(path, error)) TESSERA_TRY(write_small_model(config, path));
  log_info("no model was named: this is a small synthetic one ({}); its answers are noise", path);
  return ModelPath{path, true};
}

std::string model_stem(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

}  // namespace tessera::cli
