#include "cli/placement_options.h"

#include "cli/expert_options.h"
#include "cli/option_value.h"
#include "cli/spawn_requests.h"
#include "cli/worker_options.h"
#include "plan/teams.h"

namespace tessera::cli {
namespace {

Result<PlacementText::Budget> parse_budget(const std::string& text) {
  const std::size_t equals = text.find('=');
  PlacementText::Budget budget;
  std::string_view amount = text;
  if (equals != std::string::npos) {
    budget.device = text.substr(0, equals);
    amount.remove_prefix(equals + 1);
  }
  const std::optional<std::int64_t> bytes = parse_bytes(amount);
  if (!bytes || equals == 0)
    return Error::make(ErrorCode::invalid,
                       "--budget {}: give bytes, as in 512MiB, or those of a device, as in "
                       "cpu:0=2GB",
                       text);
  budget.bytes = *bytes;
  return budget;
}

}  // namespace

Result<Placement> placement_of(const Config& config) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> spawned, spawn_requests(config));
  // Workers that are started for layers and named nowhere come after this process.
  std::string devices = config.text("placement.target_devices");
  if (devices.empty() && !spawned_layer_devices(spawned).empty()) {
    devices = "cpu";
    for (const DeviceName& name : spawned_layer_devices(spawned)) devices += "," + name.text();
  }
  PlacementText text{.devices = devices,
                     .layer_split = config.text("placement.target_layer_split"),
                     .gpu_plugins = config.text("placement.gpu_plugins"),
                     .expert_workers = expert_devices(config, spawned)};
  for (const std::string& entry : config.list("placement.budget")) {
    TESSERA_ASSIGN(PlacementText::Budget budget, parse_budget(entry));
    text.budgets.push_back(std::move(budget));
  }
  return parse_placement(text);
}

Result<Placement> worker_placement(const Config& config) {
  PlacementText text{.devices = config.text("worker.device"),
                     .gpu_plugins = config.text("placement.gpu_plugins")};
  const Result<DeviceName> device = parse_device_name(text.devices);
  if (!device || !device->worker.empty())
    return Error::make(ErrorCode::invalid,
                       "--device {}: a worker has one device of its own; give cpu, cpu:0, cuda:0 "
                       "or hip:0",
                       text.devices);
  if (config.small("placement.threads") == 0)
    if (Status team = check_team(*device, usable_cores()); !team)
      return std::move(team).error().in("--device");
  for (const std::string& entry : config.list("placement.budget")) {
    TESSERA_ASSIGN(PlacementText::Budget budget, parse_budget(entry));
    if (!budget.device.empty() && budget.device != device->text())
      return Error::make(ErrorCode::invalid, "--budget {}: this worker computes on {}", entry,
                         device->text());
    text.budgets.push_back(std::move(budget));
  }
  return parse_placement(text);
}

Result<cpu::Isa> chosen_isa(const Config& config) {
  const std::string& name = config.text("placement.cpu_isa");
  if (name == "auto") return cpu::detect_isa();
  return cpu::parse_isa(name);
}

DeviceOptions opening_options(const Config& config) {
  const std::string& isa = config.text("placement.cpu_isa");
  const std::string& graphs = config.text("placement.gpu_graphs");
  return {.cpu_isa = isa == "auto" ? std::string() : isa,
          .gpu_plugins = config.text("placement.gpu_plugins"),
          .gpu_wait_s = config.number("placement.gpu_wait"),
          .gpu_graphs = graphs != "off",
          .gpu_chained = graphs == "chained"};
}

Status check_placement(const Config& config) {
  if (config.given("placement.target_devices") && config.text("placement.target_devices").empty())
    return Error::make(ErrorCode::invalid,
                       "--target-devices: give cpu, or a list as in cpu:0,cpu:1 or cuda:0,cpu");
  TESSERA_ASSIGN(Placement placement, placement_of(config));
  TESSERA_TRY(check_workers(config, placement));
  if (config.given("placement.delta_form") && !placement.devices.empty() &&
      std::all_of(placement.devices.begin(), placement.devices.end(),
                  [](const DeviceName& name) { return name.gpu(); }))
    return Error::make(ErrorCode::invalid,
                       "--delta-form: a GPU takes chunks where a step has more than 8 rows; the "
                       "option is for CPUs");
  // Those of this process; what workers have is theirs to say, and whether a GPU is there is no
  // question of usage.
  std::erase_if(placement.devices,
                [](const DeviceName& name) { return !name.worker.empty() || name.gpu(); });
  TESSERA_TRY(probe_inventory(placement, config.small("placement.threads")));
  TESSERA_TRY(expert_options(config));
  TESSERA_TRY(expert_resident(config));
  TESSERA_TRY(expert_spare(config));
  return {};
}

}  // namespace tessera::cli
