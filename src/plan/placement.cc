#include "plan/placement.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace tessera {
namespace {

constexpr int kMaxTeam = 1023;

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The parts between commas, empty ones too.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<DeviceName>> parse_devices(std::string_view text) {
  std::vector<DeviceName> devices;
  for (const std::string_view part : parts_of(text)) {
    Result<DeviceName> name = parse_device_name(part);
    if (!name) return std::move(name).error().in("--target-devices");
    if (std::find(devices.begin(), devices.end(), *name) != devices.end())
      return Error::make(ErrorCode::invalid, "--target-devices: {} stands there twice", part);
    devices.push_back(*name);
  }
  const bool teams = std::any_of(devices.begin(), devices.end(), [](const DeviceName& d) {
    return !d.gpu() && d.team.has_value();
  });
  if (teams && std::find(devices.begin(), devices.end(), DeviceName{}) != devices.end())
    return Error::make(ErrorCode::invalid,
                       "--target-devices: cpu is all cores; to split them name cpu:0,cpu:1,...");
  return devices;
}

Result<std::vector<double>> parse_weights(std::string_view text, std::size_t devices) {
  std::vector<double> weights;
  for (const std::string_view part : parts_of(text)) {
    const std::optional<double> weight = parse_whole<double>(part);
    if (!weight || !std::isfinite(*weight) || *weight <= 0.0)
      return Error::make(ErrorCode::invalid,
                         "--target-layer-split: '{}': give numbers above 0, as in 3,1", part);
    weights.push_back(*weight);
  }
  if (weights.size() != devices)
    return Error::make(ErrorCode::invalid,
                       "--target-layer-split: {} weights for {} devices; give one a device",
                       weights.size(), devices);
  return weights;
}

Status add_budget(const PlacementText::Budget& text, const std::vector<DeviceName>& expert_workers,
                  Placement& placement) {
  const std::vector<DeviceName>& devices = placement.devices;
  if (text.bytes < 1)
    return Error::make(ErrorCode::invalid,
                       "--budget{}: a budget is at least one byte; without one a device may use "
                       "what is free",
                       text.device.empty() ? "" : fmt::format(" {}", text.device));
  DeviceBudget budget{.device = devices.front(), .bytes = text.bytes};
  if (!text.device.empty()) {
    Result<DeviceName> name = parse_device_name(text.device);
    if (!name) return std::move(name).error().in("--budget");
    budget.device = *name;
    const auto in = [&](const std::vector<DeviceName>& names) {
      return std::find(names.begin(), names.end(), *name) != names.end();
    };
    if (!in(devices) && !in(expert_workers))
      return Error::make(ErrorCode::invalid,
                         "--budget: {} holds no layers and is no worker of experts; name it in "
                         "--target-devices or --expert-worker, or start it with --spawn-worker",
                         text.device);
  } else if (devices.size() > 1) {
    return Error::make(ErrorCode::invalid,
                       "--budget {}: there are {} devices; say whose it is, as in {}={}",
                       text.bytes, devices.size(), devices.front().text(), text.bytes);
  }
  for (const DeviceBudget& other : placement.budgets)
    if (other.device == budget.device)
      return Error::make(ErrorCode::invalid, "--budget: {} has two", budget.device.text());
  placement.budgets.push_back(budget);
  return {};
}

}  // namespace

std::string DeviceName::text() const {
  if (!worker.empty()) return "worker:" + worker;
  return team ? fmt::format("{}:{}", device_kind_name(kind), *team) : device_kind_name(kind);
}

Result<DeviceName> parse_device_name(std::string_view text) {
  if (text == "cpu") return DeviceName{};
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda, DeviceKind::hip}) {
    const std::string prefix = fmt::format("{}:", device_kind_name(kind));
    if (!text.starts_with(prefix)) continue;
    const std::string_view digits = text.substr(prefix.size());
    const std::optional<int> number = parse_whole<int>(digits);
    if (number && *number >= 0 && *number <= kMaxTeam && digits[0] != '-')
      return DeviceName{.kind = kind, .team = number};
  }
  if (text.starts_with("worker:")) {
    const std::string_view where = text.substr(7);
    const std::optional<int> number = parse_whole<int>(where);
    if (number ? *number >= 0 && where[0] != '-'
               : where.starts_with("unix:/") || where.starts_with("tcp:"))
      return DeviceName{.worker = std::string(where)};
  }
  return Error::make(ErrorCode::invalid,
                     "'{}' is no device; give cpu, or cpu:0,cpu:1,..., or cuda:0, hip:0, or "
                     "worker:0, worker:unix:/path, worker:tcp:host:port",
                     text);
}

Result<Placement> parse_placement(const PlacementText& text) {
  Placement placement;
  placement.gpu_plugins = text.gpu_plugins;
  if (!text.devices.empty()) {
    TESSERA_ASSIGN(placement.devices, parse_devices(text.devices));
  }
  if (!text.layer_split.empty()) {
    if (text.devices.empty())
      return Error::make(ErrorCode::invalid,
                         "--target-layer-split: name the devices with --target-devices");
    TESSERA_ASSIGN(placement.layer_weights,
                   parse_weights(text.layer_split, placement.devices.size()));
  }
  for (const PlacementText::Budget& budget : text.budgets)
    TESSERA_TRY(add_budget(budget, text.expert_workers, placement));
  return placement;
}

}  // namespace tessera
