// The options of routed experts as values, and what a model needs beside its pipeline for them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "cli/config.h"
#include "experts/expert_metrics.h"
#include "experts/options.h"
#include "experts/routing_counts.h"
#include "model/model.h"
#include "plan/plan.h"

namespace tessera::cli {

Result<ExpertOptions> expert_options(const Config& config);

// That a profile can be written at `path`, which `option` names, once it was made.
Status check_profile_folder(std::string_view option, const std::string& path);

// --expert-resident in percent; nothing for auto.
Result<std::optional<double>> expert_resident(const Config& config);

// --expert-cache: "8" places a layer, "2GiB" of a device.
Result<ExpertSpare> expert_spare(const Config& config);

// Residents, spare places and the profile's counts. `may_lack`: a profile that is not there yet is
// no error.
Status set_expert_plan(const Config& config, const Model& model, bool may_lack,
                       PlanOptions& options);

// Says of a profile that is not there that `serve` begins it.
void tell_missing_profile(const Config& config);

// What counts and keeps, in the order in which it goes.
struct ExpertRuntime {
  std::unique_ptr<ExpertMetrics> metrics;
  std::unique_ptr<RoutingCounts> counts;
  std::unique_ptr<ProfileKeeper> keeper;
};
// `keep`: --expert-profile is written while the model serves.
Result<ExpertRuntime> expert_runtime(const Config& config, const Model& model, bool keep,
                                     MetricsRegistry& metrics);

}  // namespace tessera::cli
