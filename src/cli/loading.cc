#include "cli/loading.h"

#include <filesystem>

#include "base/environment.h"
#include "base/log.h"
#include "cli/placement_options.h"
#include "cli/progress.h"
#include "model/synth.h"

namespace tessera::cli {
namespace {

// Its name changes when the file that the generator writes does.
constexpr const char* kSyntheticName = "synthetic-1.gguf";

DeviceOptions device_options(const Config& config) {
  const std::string& isa = config.text("placement.cpu_isa");
  return {.cpu_isa = isa == "auto" ? std::string() : isa,
          .chunked_delta = config.text("placement.delta_form") == "chunked"};
}

Result<PlanOptions> plan_options(const Config& config, const LoadNeeds& needs) {
  PlanOptions options;
  const int context = config.small("kv.ctx");
  const int parallel = config.small("engine.parallel");
  options.context = context > 0 ? context : needs.context;
  options.parallel = parallel > 0 ? parallel : needs.parallel;
  options.prefill_chunk = config.small("engine.prefill_chunk");
  options.logit_rows = needs.logit_rows;
  if (config.text("kv.type") != "auto") {
    TESSERA_ASSIGN(options.kv_type, parse_kv_type(config.text("kv.type")));
  }
  TESSERA_ASSIGN(const Placement placement, placement_of(config));
  options.layer_weights = placement.layer_weights;
  return options;
}

std::string cache_folder() {
  if (const auto xdg = environment_variable("XDG_CACHE_HOME")) return *xdg + "/tessera";
  if (const auto home = environment_variable("HOME")) return *home + "/.cache/tessera";
  return (std::filesystem::temp_directory_path() / "tessera").string();
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

}  // namespace

Result<Plan> plan_model(const Config& config, const Model& model, const LoadNeeds& needs) {
  TESSERA_ASSIGN(const PlanOptions options, plan_options(config, needs));
  TESSERA_ASSIGN(const Inventory inventory, inventory_of(config));
  return make_plan(model, inventory, options);
}

Result<LoadedModel> load_model(const Config& config, const Model& model, const LoadNeeds& needs) {
  LoadedModel loaded;
  TESSERA_ASSIGN(loaded.plan, plan_model(config, model, needs));
  TESSERA_ASSIGN(auto devices, open_devices(loaded.plan, device_options(config)));
  Progress progress({.what = "loading"});
  TESSERA_ASSIGN(loaded.pipeline, Pipeline::load(model, loaded.plan, std::move(devices),
                                                 [&](std::int64_t done, std::int64_t total) {
                                                   progress.update(done, total);
                                                 }));
  loaded.pool = std::make_unique<SequencePool>(sequence_pool_layout(loaded.plan));
  return loaded;
}

Result<std::unique_ptr<LocalEngine>> start_engine(const Config& config, LoadedModel& loaded,
                                                  const text::Tokenizer& tokenizer,
                                                  MetricsRegistry& metrics) {
  const ShardLayout& layout = loaded.plan.shards.back().layout;
  return LocalEngine::create({.parallel = loaded.plan.parallel,
                              .max_queue = config.small("server.max_queue"),
                              .context = loaded.plan.context,
                              .prefill_chunk = loaded.plan.prefill_chunk,
                              .max_rows = loaded.plan.max_rows,
                              .max_logit_rows = layout.max_logit_rows},
                             {.forward = *loaded.pipeline,
                              .pool = *loaded.pool,
                              .tokenizer = tokenizer,
                              .metrics = metrics});
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
