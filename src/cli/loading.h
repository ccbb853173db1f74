// From the options to a model that runs. Every command that loads one goes through here, so
// placement and KV options mean the same everywhere.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "base/result.h"
#include "cli/config.h"
#include "cli/expert_options.h"
#include "cli/layer_times.h"
#include "engine/local_engine.h"
#include "model/model.h"
#include "pipeline/pipeline.h"
#include "plan/plan.h"

namespace tessera::cli {

// What a command needs beyond the options.
struct LoadNeeds {
  int parallel = 1;            // where --parallel is 0
  int logit_rows = 0;          // PlanOptions::logit_rows
  int context = 0;             // where --ctx is 0; 0: the planner's choice
  bool keep_profile = false;   // --expert-profile is brought up to date, and begun if missing
  bool count_routing = false;  // LoadedModel::experts.counts is there
  MeasureLayers measure = MeasureLayers::asked;  // of several devices
  // Of experts, and unless they are required: the host computes in their place meanwhile.
  bool begin_without_workers = false;
  std::optional<DrafterSpec> drafter = std::nullopt;  // PlanOptions::drafter
};

// What load_model() would do; it writes nothing.
Result<Plan> plan_model(const Config& config, const Model& model, const LoadNeeds& needs);

struct LoadedModel {
  Plan plan;
  ExpertRuntime experts;  // goes after the pipeline
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<SequencePool> pool;
};

// With a progress bar. Workers are started or connected to; what is counted of them and of experts
// is in `metrics`, which must outlive what is loaded, as must `model`.
Result<LoadedModel> load_model(const Config& config, const Model& model, const LoadNeeds& needs,
                               MetricsRegistry& metrics);

// The engine over a loaded model; all must outlive it.
Result<std::unique_ptr<LocalEngine>> start_engine(const Config& config, LoadedModel& loaded,
                                                  const text::Tokenizer& tokenizer,
                                                  MetricsRegistry& metrics);

// Defaults of a request.
SamplingParams sampling_params(const Config& config);

// The model that the command line names. Without one: a small synthetic model in the user's cache,
// written where it is not there yet; `synthetic` says so.
struct ModelPath {
  std::string path;
  bool synthetic = false;
};
Result<ModelPath> model_path(const Config& config);

// Where files are kept that can be made again.
std::string cache_folder();

// What a person calls the model: the file's name without directory and ending.
std::string model_stem(const std::string& path);

}  // namespace tessera::cli
