#include "cli/worker_sites.h"

#include <filesystem>

#include "cli/output.h"
#include "worker/auth.h"

namespace tessera::cli {
namespace {

using worker::Role;
using worker::WorkerSite;

std::string this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

worker::TransportChoice transport(const std::string& name) {
  if (name == "shared") return worker::TransportChoice::shared;
  if (name == "stream") return worker::TransportChoice::stream;
  return worker::TransportChoice::automatic;
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

}  // namespace

worker::WorkerBuild build_of(cpu::Isa isa, DeviceKind device) {
  return {.isa = static_cast<std::uint16_t>(1 + static_cast<int>(isa)),
          .device = static_cast<std::uint16_t>(device),
          .version = TESSERA_VERSION};
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
