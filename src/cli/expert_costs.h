// What the host costs as one who computes experts away: kept from an earlier start, or measured
// (experts/measure_host.h) and kept.
//
//   if (const auto host = host_of(model, inventory, isa))
//     if (const auto costs = saved_host_costs(model, *host)) options.expert_costs = *costs;
//
// Kept by the processor, its threads and instructions, and the shape and types of the experts.
#pragma once

#include <optional>

#include "experts/measure_host.h"
#include "plan/plan.h"

namespace tessera::cli {

// Of the device in this process whose experts leave first: a CPU device's own threads compute them,
// beside a GPU other ones. Nothing where all devices are elsewhere, or the model has no experts.
std::optional<HostMeasureOptions> host_of(const Model& model, const Inventory& inventory,
                                          cpu::Isa isa);

std::optional<ExpertCosts> saved_host_costs(const Model& model, const HostMeasureOptions& host);
// Nothing, and a line in the log, where that fails.
std::optional<ExpertCosts> measured_host_costs(const Model& model, const HostMeasureOptions& host);

}  // namespace tessera::cli
