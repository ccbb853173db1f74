#include "cli/expert_costs.h"

#include <algorithm>

#include "base/log.h"
#include "cli/machine_file.h"
#include "model/has_experts.h"
#include "quant/block_format.h"

namespace tessera::cli {
namespace {

SortedJson expert_key_of(const Model& model, const HostMeasureOptions& host) {
  SortedJson experts = {{"embd", model.spec().n_embd}};
  const std::vector<LayerSpec>& layers = model.spec().layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!layers[l].moe) continue;
    experts["ff"] = layers[l].moe->n_ff;
    experts["used"] = layers[l].moe->n_used;
    for (const TensorRole role : {TensorRole::moe_gate, TensorRole::moe_up, TensorRole::moe_down})
      if (const TensorSlice* slice = model.find(role, static_cast<int>(l)))
        experts["types"].push_back(block_type_name(slice->type));
    break;
  }
  constexpr int kKernels = 2;  // rises with their speed, so that older times are not used
  return {{"experts_of_host", std::move(experts)},
          {"kernels", kKernels},
          {"processor", processor_name()},
          {"threads", host.threads},
          {"cpus", host.cpus},
          {"isa", cpu::isa_name(host.isa)},
          {"f32", host.f32_weights},
          {"beside", host.beside}};
}

ExpertCosts costs_of(const HostExpertTimes& times) {
  return {.call_s = times.call_s,
          .bytes_per_s = times.bytes_per_s,
          .call_measured = true,
          .speed_measured = true};
}

}  // namespace

std::optional<HostMeasureOptions> host_of(const Model& model, const Inventory& inventory,
                                          cpu::Isa isa) {
  if (!has_experts(model.spec())) return std::nullopt;
  const auto first = std::find_if(inventory.devices.begin(), inventory.devices.end(),
                                  [](const DeviceInventory& device) { return !device.remote; });
  if (first == inventory.devices.end()) return std::nullopt;
  if (first->kind == DeviceKind::cpu)
    return HostMeasureOptions{.threads = first->threads, .cpus = first->cpus, .isa = isa};
  return HostMeasureOptions{.threads = first->threads, .isa = isa, .beside = true};
}

std::optional<ExpertCosts> saved_host_costs(const Model& model, const HostMeasureOptions& host) {
  const std::optional<HostExpertTimes> times = saved_expert_times(expert_key_of(model, host));
  return times ? std::optional(costs_of(*times)) : std::nullopt;
}

std::optional<ExpertCosts> measured_host_costs(const Model& model, const HostMeasureOptions& host) {
  const Result<HostExpertTimes> times = measure_host_experts(model, host);
  if (!times) {
    log_warn("what experts cost the host was not measured: {}", times.error().message);
    return std::nullopt;
  }
  save_expert_times(expert_key_of(model, host), *times);
  return costs_of(*times);
}

}  // namespace tessera::cli
