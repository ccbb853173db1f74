// What was measured of this machine and of devices, kept in the user's cache for plans made later.
//
// A measurement counts for what its key says only: the speed of a machine for the same processor,
// number of threads and instruction set, the times of a model's layers for the same model besides,
// and more (layer_times.h). The file is read as one that anyone may have written: what is no
// measurement is passed over.
//
// Best effort: a cache that cannot be written or read is one that is not there.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/bandwidth.h"
#include "device/cpu/isa.h"
#include "experts/measure_host.h"
#include "pipeline/measure_layers.h"
#include "plan/prediction.h"

namespace tessera::cli {

// What the file consists of. Its keys stand in order, so that equal ones compare equal.
using SortedJson = nlohmann::json;

// The speed of `threads` threads together; more than there are cores do no more.
MeasuredSpeed measured_speed(const MachineSpeed& speed, int threads);

// "EPYC 9654", as the system has it.
std::string processor_name();

void save_speed(const MeasuredSpeed& speed, int threads, cpu::Isa isa);
std::optional<MeasuredSpeed> saved_speed(int threads, cpu::Isa isa);
// What look_at_machine() sees with this team, which is saved. Nothing where there is no memory or
// no thread to look with.
std::optional<MeasuredSpeed> quick_speed(const ThreadTeamOptions& team, cpu::Isa isa,
                                         std::int64_t memory);

void save_expert_times(const SortedJson& key, const HostExpertTimes& times);
std::optional<HostExpertTimes> saved_expert_times(const SortedJson& key);

void save_layer_times(const SortedJson& key, const MeasuredLayers& measured);
// Nothing but usable() times of a model of so many layers.
std::optional<MeasuredLayers> saved_layer_times(const SortedJson& key, int n_layer);

}  // namespace tessera::cli
