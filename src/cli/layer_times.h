// The times of a model's layers on the devices of a plan: kept from an earlier start, or measured.
//
//   const LayerTimesFound found = add_layer_times(needs, open, inventory);
//   TESSERA_ASSIGN(Plan plan, make_plan(model, inventory, options));
//
// What was measured is kept by the device (its name, threads and cores, of a worker how it was
// started or where it listens), the processor, the model and what else decides how fast a layer is.
// Where times were not steady (kMostSpread), the next start that measures does so again, and the
// steadier ones are kept.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "cli/config.h"
#include "cli/find_workers.h"
#include "model/model.h"
#include "pipeline/shard.h"
#include "plan/plan.h"

namespace tessera::cli {

// When a command measures: not at all; where --layer-times asks for it; also what is not known yet.
enum class MeasureLayers { never, asked, missing };

struct LayerTimesNeeds {
  const Config& config;
  const Model& model;
  const PlanOptions& options;
  std::span<const LayerWorker> workers;
  MetricsRegistry& metrics;  // of the command
  MeasureLayers measure = MeasureLayers::asked;
};

// A shard of this device, alone.
using OpenShard =
    std::function<Result<std::unique_ptr<Shard>>(const DeviceInventory&, const ShardLayout&)>;

struct LayerTimesFound {
  std::vector<std::string> warnings;  // a line for each device whose times were not steady
  std::string unmeasured;             // Plan::unmeasured
};

// Sets DeviceInventory::times of all devices, or of none. A device that cannot be measured is told
// in the log too, and counted (tessera_layer_times_failures_total), by what is done without its
// times.
LayerTimesFound add_layer_times(const LayerTimesNeeds& needs, const OpenShard& open,
                                Inventory& inventory);

}  // namespace tessera::cli
