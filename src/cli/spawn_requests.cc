#include "cli/spawn_requests.h"

#include <algorithm>
#include <charconv>

#include "cli/option_value.h"

namespace tessera::cli {
namespace {

using worker::Role;

constexpr int kMostThreads = 1024;

Error wrong_spawn(std::string_view text, std::string_view why) {
  return Error::make(
      ErrorCode::invalid,
      "--spawn-worker {}: {}; give ROLE[,device=D][,bin=PATH][,threads=N][,budget=BYTES], as in "
      "layers,threads=2",
      text, why);
}

// One part after the role.
Status take_setting(std::string_view part, SpawnRequest& request) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
  if (value.empty()) return wrong_spawn(part, "this part lacks a value");
  if (std::find(request.keys.begin(), request.keys.end(), key) != request.keys.end())
    return wrong_spawn(part, "this worker has that key already");
  request.keys.emplace_back(key);
  if (key == "bin") {
    request.binary = value;
  } else if (key == "device") {
    Result<DeviceName> name = parse_device_name(value);
    if (!name || !name->worker.empty())
      return wrong_spawn(part, "a worker computes on cpu, cpu:0, cuda:1 and the like");
    request.device = value;
  } else if (key == "threads") {
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), request.threads);
    if (error != std::errc() || end != value.data() + value.size() || request.threads < 1 ||
        request.threads > kMostThreads)
      return wrong_spawn(part, fmt::format("threads go from 1 to {}", kMostThreads));
  } else if (key == "budget") {
    const std::optional<std::int64_t> bytes = parse_bytes(value);
    if (!bytes || *bytes <= 0) return wrong_spawn(part, "give bytes, as in 2GB");
    request.budget = *bytes;
  } else {
    return wrong_spawn(part, "this key is not known");
  }
  return {};
}

// Of the workers of experts that are asked for those that name no program have this one; where none
// is asked for, one is.
void set_expert_binary(const std::string& binary, std::vector<SpawnRequest>& requests) {
  const auto is_expert = [](const SpawnRequest& request) { return request.role == Role::experts; };
  if (std::none_of(requests.begin(), requests.end(), is_expert))
    requests.push_back({.role = Role::experts});
  for (SpawnRequest& request : requests)
    if (is_expert(request) && request.binary.empty()) request.binary = binary;
}

}  // namespace

Result<std::vector<SpawnRequest>> spawn_requests(const Config& config) {
  std::vector<SpawnRequest> requests;
  // In the environment commas separate list entries too, so a part with '=' belongs to the role
  // before it, wherever it stands.
  for (const std::string& entry : config.list("worker.spawn")) {
    std::string_view rest = entry;
    for (bool first = true, last = false; !last; first = false) {
      const std::size_t comma = rest.find(',');
      last = comma == std::string_view::npos;
      const std::string_view part = rest.substr(0, comma);
      if (!last) rest.remove_prefix(comma + 1);
      if (part == "layers" || part == "experts") {
        requests.push_back({.role = part == "layers" ? Role::layers : Role::experts});
      } else if (requests.empty() || (first && part.find('=') == std::string_view::npos)) {
        return wrong_spawn(entry, "the role is layers or experts");
      } else {
        TESSERA_TRY(take_setting(part, requests.back()));
      }
    }
  }
  if (const std::string& binary = config.text("worker.expert_bin"); !binary.empty())
    set_expert_binary(binary, requests);
  return requests;
}

DeviceName numbered(std::size_t i) {
  return {.worker = std::to_string(i)};
}

std::vector<DeviceName> spawned_layer_devices(const std::vector<SpawnRequest>& requests) {
  std::vector<DeviceName> devices;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].role == Role::layers) devices.push_back(numbered(i));
  return devices;
}

}  // namespace tessera::cli
