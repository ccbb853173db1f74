#include "cli/worker_options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/log.h"
#include "cli/expert_options.h"
#include "cli/option_value.h"
#include "cli/output.h"
#include "cli/placement_options.h"
#include "cli/worker_addresses.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/isa.h"
#include "experts/expert_worker.h"
#include "plan/teams.h"
#include "worker/auth.h"
#include "worker/connection_bytes.h"
#include "worker/model_ranges.h"

namespace tessera::cli {
namespace {

using worker::Role;
using worker::WorkerSite;

constexpr auto kProbeTime = std::chrono::seconds(10);
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
    if (name->gpu() && request.role != Role::layers)
      return wrong_spawn(part, "a GPU computes layers; experts are computed on cpu");
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

// It would end with this, as the first thing that it says.
Status check_spawn_team(const SpawnRequest& request) {
  if (request.threads > 0) return {};
  TESSERA_ASSIGN(const DeviceName device, parse_device_name(request.device));
  Status team = check_team(device, usable_cores());
  if (team) return {};
  return std::move(team).error().in(fmt::format("--spawn-worker device={}", request.device));
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

std::string this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

worker::TransportChoice transport(const std::string& name) {
  if (name == "shared") return worker::TransportChoice::shared;
  if (name == "stream") return worker::TransportChoice::stream;
  return worker::TransportChoice::automatic;
}

Result<WorkerSite> make_site(const Config& config, std::string name, Role role) {
  WorkerSite site{.name = std::move(name),
                  .role = role,
                  .transport = transport(config.text(
                      role == Role::layers ? "worker.transport" : "experts.ipc_transport"))};
  TESSERA_ASSIGN(site.token, worker_token(config));
  if (const std::string& name = config.text("placement.cpu_isa"); name != "auto") {
    TESSERA_ASSIGN(const cpu::Isa isa, cpu::parse_isa(name));
    site.isa = build_of(isa).isa;
  }
  site.job_limit = std::chrono::milliseconds(
      static_cast<std::int64_t>(config.number("worker.timeout") * 1000.0));
  return site;
}

// What a worker on a GPU is told of it.
std::vector<std::string> gpu_words(const Config& config) {
  std::vector<std::string> words = {"--gpu-graphs", config.text("placement.gpu_graphs"),
                                    "--gpu-wait",
                                    fmt::format("{}s", config.number("placement.gpu_wait"))};
  if (const std::string& folder = config.text("placement.gpu_plugins"); !folder.empty())
    words.insert(words.end(), {"--gpu-plugins", folder});
  return words;
}

void set_spawn(const Config& config, const SpawnRequest& request, WorkerSite& site) {
  site.spawn = worker::SpawnOptions{
      .binary = request.binary.empty() ? this_program() : request.binary, .log_prefix = site.name};
  site.probe_arguments = {"--config", "/dev/null", "--device", request.device};
  if (const Result<DeviceName> device = parse_device_name(request.device); device && device->gpu())
    for (std::string& word : gpu_words(config)) site.probe_arguments.push_back(std::move(word));
  if (request.threads > 0)
    site.probe_arguments.insert(site.probe_arguments.end(),
                                {"--threads", std::to_string(request.threads)});
}

// What a worker may use for weights. One without a file keeps the model's metadata beside them.
std::int64_t free_memory(const worker::Probe& probe, const Model& model) {
  const auto free = static_cast<std::int64_t>(probe.memory_free);
  if (!worker::has_no_file(probe)) return free;
  const auto kept = static_cast<std::int64_t>(worker::opening_bytes(model.file()));
  return std::max<std::int64_t>(0, free - kept);
}

// A worker at an address was started with kernels of its own.
Status check_isa(const Config& config, const WorkerSite& site, const worker::Probe& probe) {
  if (site.spawn) return {};
  Status same = worker::check_isa(probe.build, site.isa);
  if (same) return {};
  return std::move(same).error().in(site.name).in(fmt::format(
      "{} {}", config.name_as_given("placement.cpu_isa"), config.text("placement.cpu_isa")));
}

// The host computes a worker's experts where that is late. Those that are spawned are started for
// this process's own kernels.
void tell_build(const WorkerSite& site, const worker::WorkerBuild& theirs,
                const worker::WorkerBuild& own) {
  if (site.spawn || theirs == own) return;
  log_warn("{} computes with {}, this process with {}: {}", site.name, worker::build_text(theirs),
           worker::build_text(own),
           "which of them computes an expert shows in the last bits; "
           "the same program and --cpu-isa at both avoid it");
}

// On this machine, whose memory it shares.
bool is_here(const WorkerSite& site) {
  return site.spawn || site.address.kind == worker::Address::Kind::unix_path;
}

// A GPU's memory and speed are no part of this machine's.
void take_device(const worker::Probe& probe, WorkerInventory& inventory) {
  inventory.kind = static_cast<DeviceKind>(probe.build.device);
  inventory.bytes_per_s = probe.bytes_per_second;
  inventory.op_per_s = probe.op_per_second;
  if (inventory.kind == DeviceKind::cpu) return;
  inventory.threads = std::max(1, static_cast<int>(probe.threads));
  inventory.memory_total = static_cast<std::int64_t>(probe.memory_total);
  inventory.memory_free = static_cast<std::int64_t>(probe.memory_free);
}

// Of a worker that listens: what it may use is for it to say.
WorkerInventory inventory_at(const DeviceName& name, const WorkerSite& site,
                             const worker::Probe& probe, std::int64_t free) {
  WorkerInventory inventory{.name = name,
                            .here = is_here(site),
                            .has_file = !worker::has_no_file(probe),
                            .threads = std::max(1, static_cast<int>(probe.threads)),
                            .memory_total = static_cast<std::int64_t>(probe.memory_total),
                            .memory_free = free};
  take_device(probe, inventory);
  const bool shares = inventory.here && inventory.kind == DeviceKind::cpu;
  (shares ? inventory.most : inventory.budget) = free;
  return inventory;
}

bool names(const Placement& placement, const DeviceName& device) {
  return std::find(placement.devices.begin(), placement.devices.end(), device) !=
         placement.devices.end();
}

DeviceName numbered(std::size_t i) {
  return {.worker = std::to_string(i)};
}

// Without a worker of experts there is nothing that could be required.
Status check_required(const Config& config, const std::vector<SpawnRequest>& requests) {
  if (!config.flag("experts.ipc_required") || !expert_devices(config, requests).empty()) return {};
  return Error::make(ErrorCode::invalid,
                     "{}: no worker of experts is named; add --expert-worker ADDRESS or "
                     "--spawn-worker experts, or leave this out",
                     config.name_as_given("experts.ipc_required"));
}

}  // namespace

worker::WorkerBuild build_of(cpu::Isa isa, DeviceKind device) {
  return {.isa = static_cast<std::uint16_t>(1 + static_cast<int>(isa)),
          .device = static_cast<std::uint16_t>(device),
          .version = TESSERA_VERSION};
}

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

std::vector<DeviceName> spawned_layer_devices(const std::vector<SpawnRequest>& requests) {
  std::vector<DeviceName> devices;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].role == Role::layers) devices.push_back(numbered(i));
  return devices;
}

std::vector<DeviceName> expert_devices(const Config& config,
                                       const std::vector<SpawnRequest>& requests) {
  std::vector<DeviceName> devices;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].role == Role::experts) devices.push_back(numbered(i));
  for (const std::string& address : config.list("worker.experts"))
    devices.push_back({.worker = address});
  return devices;
}

Result<std::string> worker_token(const Config& config) {
  const std::string& path = config.text("worker.token_file");
  std::string token = config.text("worker.token");
  if (path.empty()) return token;
  TESSERA_ASSIGN(token, read_text_file(path));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (Status right = worker::check_token(token); !right) return std::move(right).error().in(path);
  return token;
}

Status check_workers(const Config& config, const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].binary.empty()) TESSERA_TRY(worker::check_binary(requests[i].binary));
    TESSERA_TRY(check_spawn_team(requests[i]));
    if (requests[i].role == Role::layers && !names(placement, numbered(i)))
      return Error::make(ErrorCode::invalid,
                         "--spawn-worker: {} is started for layers and --target-devices does not "
                         "name it",
                         numbered(i).text());
    for (const DeviceBudget& budget : placement.budgets)
      if (requests[i].budget > 0 && budget.device == numbered(i))
        return Error::make(ErrorCode::invalid,
                           "--budget: {} has a budget in --spawn-worker already; give one of them",
                           numbered(i).text());
  }
  for (const DeviceName& name : placement.devices) {
    if (name.worker.empty() || name.worker.find(':') != std::string::npos) continue;
    std::size_t number = requests.size();
    std::from_chars(name.worker.data(), name.worker.data() + name.worker.size(), number);
    if (number >= requests.size() || requests[number].role != Role::layers)
      return Error::make(ErrorCode::invalid,
                         "--target-devices: {} needs a --spawn-worker layers with that number; {} "
                         "are started, counting those of experts",
                         name.text(), requests.size());
  }
  TESSERA_TRY(check_worker_addresses(config, placement));
  TESSERA_TRY(check_required(config, requests));
  return {};
}

Result<std::vector<LayerWorker>> find_layer_workers(const Config& config, const Model& model,
                                                    const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  std::vector<LayerWorker> workers;
  for (const DeviceName& name : placement.devices) {
    if (name.worker.empty()) continue;
    LayerWorker found;
    TESSERA_ASSIGN(found.site, make_site(config, name.text(), Role::layers));
    if (name.worker.find(':') != std::string::npos) {
      TESSERA_ASSIGN(found.site.address, worker::Address::parse(name.worker));
    } else {
      std::size_t number = 0;
      std::from_chars(name.worker.data(), name.worker.data() + name.worker.size(), number);
      set_spawn(config, requests[number], found.site);
      found.inventory = {.name = name, .threads = requests[number].threads};
      if (requests[number].budget > 0) found.inventory.budget = requests[number].budget;
    }
    found.site.lifecycle.most_restarts = worker::kMostRestarts;
    found.site.lifecycle.reappears = !found.site.spawn;
    TESSERA_ASSIGN(const worker::Probe probe, probe_site(found.site, worker::after(kProbeTime)));
    TESSERA_TRY(check_isa(config, found.site, probe));
    TESSERA_TRY(worker::check_model(found.site, probe, model));
    if (!found.site.spawn) {
      found.site.build = probe.build;
      found.inventory = inventory_at(name, found.site, probe, free_memory(probe, model));
    } else {
      take_device(probe, found.inventory);
    }
    found.inventory.connection = [site = found.site, &model](const ShardLayout& layout) {
      return worker::layers_connection_bytes(site, model.spec(), layout);
    };
    workers.push_back(std::move(found));
  }
  return workers;
}

namespace {

// Room for all experts of the model and to compute any of them.
std::int64_t all_experts_bytes(const Config& config, const Model& model, const ExpertSite& found) {
  const ModelSpec& spec = model.spec();
  ShardLayout layout;
  layout.end_layer = spec.n_layer();
  const std::vector<std::int64_t> each = cpu_expert_bytes(model, layout);
  const int rows = config.small("experts.ipc_batch_capacity");
  std::int64_t bytes =
      kWorkerBytes + found.inventory.connection(rows).there +
      expert_worker_overhead(model, each, {.max_rows = rows, .threads = found.threads});
  for (std::size_t l = 0; l < each.size(); ++l)
    if (const auto& moe = spec.layers[l].moe) bytes += moe->n_expert * each[l];
  return bytes;
}

// Asks it about itself. One at an address may come later, unless it is required: until then it is
// taken to have room for all experts.
Status ask_expert_worker(const Config& config, const Model& model, ExpertSite& found) {
  const Result<worker::SiteProbe> probe = probe_site(found.site, worker::after(kProbeTime));
  found.inventory = {.name = found.site.name, .here = is_here(found.site)};
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  TESSERA_ASSIGN(const ExpertOptions options, expert_options(config));
  found.inventory.connection = [site = found.site, &model, options](int job_rows) {
    return worker::experts_connection_bytes(site, model.spec(),
                                            {.max_rows = job_rows, .payload = options.payload});
  };
  if (probe) {
    TESSERA_TRY(check_isa(config, found.site, *probe));
    tell_build(found.site, probe->build, build_of(isa));
    if (!found.site.spawn) found.site.build = probe->build;
    TESSERA_TRY(worker::check_model(found.site, *probe, model));
    if (!found.site.spawn) found.threads = std::max(1, static_cast<int>(probe->threads));
    found.inventory.budget = free_memory(*probe, model);
    found.inventory.bytes_per_s = probe->bytes_per_second;
    found.inventory.op_per_s = probe->op_per_second;
    found.inventory.call_s = std::chrono::duration<double>(probe->round_trip).count();
  } else {
    const bool may_come = !found.site.spawn && !config.flag("experts.ipc_required") &&
                          probe.error().code == ErrorCode::unavailable;
    if (!may_come) return probe.error();
    log_warn("{}; the host computes its experts until it comes", probe.error().message);
    found.site.build = build_of(isa);
    found.inventory.unheard = probe.error().message;
    found.inventory.budget = all_experts_bytes(config, model, found);
  }
  found.inventory.threads = found.threads;
  return {};
}

}  // namespace

Result<std::vector<ExpertSite>> find_expert_workers(const Config& config, const Model& model,
                                                    const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  std::vector<ExpertSite> workers;
  std::vector<std::int64_t> budgets;  // that were asked for
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].role != Role::experts) continue;
    SpawnRequest request = requests[i];
    request.threads = std::max(1, request.threads);
    ExpertSite found{.threads = request.threads};
    TESSERA_ASSIGN(found.site, make_site(config, numbered(i).text(), Role::experts));
    set_spawn(config, request, found.site);
    workers.push_back(std::move(found));
    budgets.push_back(request.budget);
  }
  for (const std::string& text : config.list("worker.experts")) {
    ExpertSite found;
    TESSERA_ASSIGN(found.site, make_site(config, "worker:" + text, Role::experts));
    TESSERA_ASSIGN(found.site.address, worker::Address::parse(text));
    workers.push_back(std::move(found));
    budgets.push_back(0);
  }
  for (std::size_t i = 0; i < workers.size(); ++i)
    for (const DeviceBudget& budget : placement.budgets)
      if (budget.device.text() == workers[i].site.name)
        budgets[i] = budgets[i] > 0 ? std::min(budgets[i], budget.bytes) : budget.bytes;
  // Those on this machine share its memory with each other and with this process.
  const auto here = std::count_if(workers.begin(), workers.end(),
                                  [](const ExpertSite& found) { return is_here(found.site); });
  const std::int64_t share = probe_inventory(1).devices.front().memory_free / (here + 1);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    TESSERA_TRY(ask_expert_worker(config, model, workers[i]));
    std::int64_t& budget = workers[i].inventory.budget;
    if (workers[i].inventory.here) budget = std::min(budget, share);
    // What one at an address may use is for it to say, too.
    const bool spawned = workers[i].site.spawn.has_value();
    if (budgets[i] > 0) budget = spawned ? budgets[i] : std::min(budget, budgets[i]);
    const bool heard = workers[i].inventory.unheard.empty();
    workers[i].inventory.bounded = budgets[i] > 0 || (!spawned && heard);
  }
  return workers;
}

WorkerSite started_site(const Config& config, const WorkerSite& site, const WorkerStart& start) {
  WorkerSite started = site;
  if (!started.spawn) return started;
  std::vector<std::string>& words = started.spawn->arguments;
  words = {"worker", start.model};
  words.insert(words.end(), site.probe_arguments.begin(), site.probe_arguments.end());
  const std::string& isa = config.text("placement.cpu_isa");
  for (const std::string& word :
       {std::string("--threads"), std::to_string(start.threads), std::string("--budget"),
        std::to_string(start.budget), std::string("--cpu-isa"), isa, std::string("--log-level"),
        config.text("log.level")})
    words.push_back(word);
  return started;
}

}  // namespace tessera::cli
