#include "cli/layer_times.h"

#include <fmt/format.h>
#include <malloc.h>

#include <map>

#include "base/checked.h"
#include "base/log.h"
#include "cli/machine_file.h"
#include "model/identity.h"
#include "pipeline/measure_layers.h"
#include "plan/footprint.h"
#include "worker/probe.h"

namespace tessera::cli {
namespace {

// Spawned workers are alike where they are started alike, whatever their number; one at an address
// may be another program or processor there by now. GPUs of one model are alike: two measurements
// of the same differ by what else the machine does, which must not decide between them.
std::string device_text(const DeviceInventory& device, std::span<const LayerWorker> workers) {
  for (const LayerWorker& worker : workers)
    if (worker.site.name == device.name && worker.site.spawn) {
      std::string text = "spawned " + worker.site.spawn->binary;
      for (const std::string& word : worker.site.probe_arguments) text += " " + word;
      return text;
    } else if (worker.site.name == device.name && worker.site.build) {
      return fmt::format("{}, {}", device.name, worker::build_text(*worker.site.build));
    }
  if (!device.model.empty())
    return fmt::format("{}, {}", device.name.substr(0, device.name.find(':')), device.model);
  return device.name;
}

class DeviceTimes {
 public:
  DeviceTimes(const LayerTimesNeeds& needs, const Inventory& inventory)
      : needs_(needs),
        rows_(piece_rows(needs.model.spec(), needs.options.prefill_chunk, inventory.devices)),
        kv_type_(needs.options.kv_type.value_or(
            default_kv_type(needs.model, needs.options.f32_weights))),
        digest_(digest_text(model_digest(needs.model.file()))),
        cut_by_bytes_(failures(needs.metrics, "cut_by_bytes")),
        kept_before_(failures(needs.metrics, "kept_before")) {
    for (const DeviceInventory& device : inventory.devices)
      if (!device.remote && device.kind == DeviceKind::cpu && program_on_ == nullptr)
        program_on_ = &device;
  }

  SortedJson key_of(const DeviceInventory& device, bool head) const {
    const Config& config = needs_.config;
    SortedJson key = {{"layers_of", digest_},
                      {"device", device_text(device, needs_.workers)},
                      {"threads", device.threads},
                      {"cpus", device.cpus},
                      {"processor", processor_name()},
                      {"version", TESSERA_VERSION},
                      {"isa", config.text("placement.cpu_isa")},
                      {"piece_rows", rows_},
                      {"kv", kv_type_name(kv_type_)},
                      {"compute", config.text("placement.compute")},
                      {"delta_form", config.text("placement.delta_form")},
                      {"head", head}};
    if (device.kind != DeviceKind::cpu) {
      key["memory"] = device.memory_total;  // another card at the same number
      key["graphs"] = config.text("placement.gpu_graphs");
    }
    if (device.remote) {
      key["memory"] = device.memory_total;  // another machine at the same address
      key["transport"] = config.text("worker.transport");
    }
    return key;
  }

  // By whether times of before count instead.
  void count_failure(bool before) const { (before ? kept_before_ : cut_by_bytes_).add(); }

  Result<MeasuredLayers> measure(const DeviceInventory& device, bool head,
                                 const OpenShard& open) const {
    const MeasureOptions options{
        .piece_rows = rows_,
        .kv_type = kv_type_,
        .f32_weights = needs_.options.f32_weights,
        .head = head,
        .cpus = device.cpus,
        .fits = [&](const ShardLayout& layout) { return fits(device, layout); }};
    return measure_layers(needs_.model, options,
                          [&](const ShardLayout& layout) { return open(device, layout); });
  }

 private:
  static Counter& failures(MetricsRegistry& metrics, const char* reason) {
    return metrics.counter("tessera_layer_times_failures_total",
                           "Devices whose layers could not be measured, by what counts instead.",
                           {{"reason", reason}});
  }
  // With what a plan charges a CPU device with besides: of a worker its program and its end of the
  // connection, of the first device here this program.
  std::int64_t besides(const DeviceInventory& device, const ShardLayout& layout) const {
    if (device.kind != DeviceKind::cpu) return 0;
    if (!device.remote) return &device == program_on_ ? program_bytes(needs_.model) : 0;
    return saturated_add(kWorkerBytes, device.connection ? device.connection(layout).there : 0);
  }
  bool fits(const DeviceInventory& device, const ShardLayout& layout) const {
    const std::int64_t bytes =
        saturated_add(footprint(needs_.model, layout, device.kind, device.threads).total(),
                      besides(device, layout));
    return bytes <= std::min({device.budget.value_or(device.memory_free), device.memory_free,
                              device.most.value_or(device.memory_free)});
  }

  const LayerTimesNeeds& needs_;
  int rows_;
  KvType kv_type_;
  std::string digest_;
  Counter& cut_by_bytes_;
  Counter& kept_before_;
  const DeviceInventory* program_on_ = nullptr;  // of the inventory; null: no CPU device is here
};

// What a device takes, measured now and kept. Where that fails there is a line in the log, and what
// was known `before` counts, though it was not steady.
Result<MeasuredLayers> measured_now(const DeviceTimes& times, const DeviceInventory& device,
                                    const SortedJson& key, const OpenShard& open,
                                    const std::optional<MeasuredLayers>& before, int n_layer) {
  log_info("{}: measuring the model's layers{}, which is kept for later starts", device.name,
           before ? " again, since they were not steady" : "");
  Result<MeasuredLayers> result = times.measure(device, key.at("head"), open);
  if (result && !usable(result->times, n_layer))
    result = Error::make(ErrorCode::internal, "the times are none that a clock can give");
  if (!result) {
    log_warn("{}: its layers were not measured ({}); {}", device.name, result.error().message,
             before ? "the times of before count" : "the plan does without times");
    times.count_failure(before.has_value());
    if (before) return *before;
    return result;
  }
  if (before && before->spread <= result->spread) return *before;
  save_layer_times(key, *result);
  return *std::move(result);
}

std::string unsteady_text(const DeviceInventory& device, double spread) {
  return fmt::format(
      "The times of the layers on {} varied by {:.0f} % while they were measured, and decide where "
      "layers are cut: other work may have used the machine. The next start measures them again.",
      device.name, 100.0 * spread);
}

}  // namespace

LayerTimesFound add_layer_times(const LayerTimesNeeds& needs, const OpenShard& open,
                                Inventory& inventory) {
  const std::string& choice = needs.config.text("placement.layer_times");
  const bool afresh = choice == "measure" && needs.measure != MeasureLayers::never;
  const bool split = inventory.devices.size() > 1;
  if (choice == "bytes" || (!split && !afresh)) return {};
  // Cuts that a person chose need no times.
  const bool missing = afresh || (needs.measure == MeasureLayers::missing && split &&
                                  needs.options.layer_weights.empty());
  const DeviceTimes times(needs, inventory);
  const int n_layer = needs.model.spec().n_layer();
  std::vector<MeasuredLayers> found;
  std::map<SortedJson, MeasuredLayers> measured;  // devices may be alike
  const DeviceInventory& last = inventory.devices.back();
  for (const DeviceInventory& device : inventory.devices) {
    // For GPUs like the last one it is measured, with the head.
    const bool like_last =
        &device == &last ||
        (!device.model.empty() && times.key_of(device, true) == times.key_of(last, true));
    const SortedJson key = times.key_of(device, like_last);
    const auto alike = measured.find(key);
    std::optional<MeasuredLayers> known = alike != measured.end() ? std::optional(alike->second)
                                          : afresh                ? std::nullopt
                                                                  : saved_layer_times(key, n_layer);
    const bool steady = known && known->spread <= kMostSpread;
    if (missing && !steady && alike == measured.end()) {
      const DeviceInventory& on = like_last ? last : device;
      const auto now = measured_now(times, on, key, open, known, n_layer);
      if (!now)
        return {.unmeasured = fmt::format("{} was not measured: {}", on.name, now.error().message)};
      known = *now;
      measured.emplace(key, *known);
    }
    if (!known) return {};
    found.push_back(*std::move(known));
  }
#if defined(__GLIBC__)
  // The plan does not count what measuring leaves on the heap.
  if (!measured.empty()) malloc_trim(0);
#endif
  LayerTimesFound result;
  for (std::size_t i = 0; i < found.size(); ++i) {
    inventory.devices[i].times = found[i].times;
    if (split && found[i].spread > kMostSpread)
      result.warnings.push_back(unsteady_text(inventory.devices[i], found[i].spread));
  }
  return result;
}

}  // namespace tessera::cli
