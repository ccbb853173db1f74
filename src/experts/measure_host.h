// What the host takes for experts away from their layers' device, measured on the host executor
// itself, with experts of the model's file.
//
//   TESSERA_ASSIGN(const HostExpertTimes times, measure_host_experts(model, {.threads = 4}));
//
// Of the first layer with experts a row's are computed some times, each time from memory and no
// cache: tens of milliseconds, seconds on a busy machine, and the pages of these experts. Layers
// with other types may differ. Errors: unsupported for a model without experts, exhausted, io,
// internal where the machine is too busy to tell.
#pragma once

#include <functional>
#include <vector>

#include "device/cpu/isa.h"
#include "experts/executor.h"
#include "model/model.h"

namespace tessera {

struct HostExpertTimes {
  double call_s = 0.0;       // of a job, without its bytes
  double bytes_per_s = 0.0;  // at which it computes experts, in bytes of the file
};

// That they are numbers that a clock can give.
bool usable(const HostExpertTimes& times);

struct HostMeasureOptions {
  int threads = 1;
  std::vector<int> cpus{};  // where they run; empty: not bound
  cpu::Isa isa = cpu::detect_isa();
  bool f32_weights = false;
  bool beside = false;  // on a thread of its own, beside a device without cores
};

Result<HostExpertTimes> measure_host_experts(const Model& model, const HostMeasureOptions& options);

// The same of `host`, which has the experts of `layer`, by a clock that counts seconds.
Result<HostExpertTimes> measure_host_experts(const Model& model, int layer, ExpertExecutor& host,
                                             const std::function<double()>& clock);

}  // namespace tessera
