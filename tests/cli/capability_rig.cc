#include "tests/cli/capability_rig.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "cli/placement_options.h"
#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

constexpr const char* kLayersWorker = "layers,bin=" TESSERA_PROGRAM;
constexpr const char* kExpertsWorker = "experts,threads=1,bin=" TESSERA_PROGRAM;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

void replace(std::string& text, std::string_view part, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size())
    text.replace(at, part.size(), by);
}

double locked_bytes() {
  std::istringstream lines(read_file("/proc/self/status"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("VmLck:")) return 1024 * std::stod(line.substr(6));
  return 0;
}

double sum_of(const std::string& page, const std::string& name) {
  double sum = 0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{") || line.starts_with(name + " "))
      sum += std::stod(line.substr(line.rfind(' ')));
  return sum;
}

// A value of its own for each expert, so that a placement by it is another one.
std::string skewed_profile(const Model& model) {
  std::string text;
  int experts = 0, used = 0;
  for (const LayerSpec& layer : model.spec().layers) {
    if (!layer.moe) {
      text += "-\n";
      continue;
    }
    experts = layer.moe->n_expert;
    used = layer.moe->n_used;
    for (int e = 0; e < experts; ++e) text += fmt::format("{}{}", e > 0 ? "," : "", 1 << (e % 12));
    text += "\n";
  }
  return fmt::format("# hotness table: n_layer={} n_expert={} n_expert_used={}\n",
                     model.spec().n_layer(), experts, used) +
         text;
}

}  // namespace

Status forward(const cli::LoadedModel& loaded, int chunk, std::vector<float>& logits) {
  std::vector<TokenId> ids;
  for (int i = 0; i < kRows; ++i) ids.push_back(1 + i * 7 % 300);
  TESSERA_ASSIGN(SequenceState sequence, loaded.pool->admit(kRows));
  loaded.pipeline->reset_slot(sequence.slot());
  std::vector<std::int32_t> logit_rows;
  for (int at = 0; at < kRows; at += chunk) {
    const int rows = std::min(chunk, kRows - at);
    logit_rows.clear();
    for (int i = 0; i < rows; ++i) logit_rows.push_back(i);
    sequence.extend(rows);
    const SequenceRows part{.n_rows = rows,
                            .first_position = at,
                            .slot = sequence.slot(),
                            .pages = sequence.page_tables()};
    TESSERA_TRY(
        loaded.pipeline->forward({.tokens = std::span(ids).subspan(static_cast<std::size_t>(at),
                                                                   static_cast<std::size_t>(rows)),
                                  .sequences = {&part, 1},
                                  .logit_rows = logit_rows}));
    const std::span<const float> got = loaded.pipeline->logits();
    logits.insert(logits.end(), got.begin(), got.end());
    sequence.trim(at + rows);
  }
  return {};
}

std::string last_flag(const cli::Option& option) {
  std::string_view flags = option.flags;
  if (const std::size_t comma = flags.rfind(','); comma != std::string_view::npos)
    flags.remove_prefix(comma + 1);
  return std::string(flags);
}

Settings joined(Settings settings, const Settings& others) {
  for (const auto& [key, values] : others) settings[key] = values;
  return settings;
}

const char* name_of(Topology topology) {
  constexpr const char* kNames[] = {
      "one",          "split",        "split_three",     "layers_spawned",
      "layers_unix",  "layers_tcp",   "layers_sent",     "layers_chain",
      "layers_first", "experts_here", "experts_spawned", "experts_unix",
      "experts_tcp",  "experts_sent", "experts_two",     "experts_split",
      "both_roles"};
  return kNames[static_cast<std::size_t>(topology)];
}

const Model& capability_model() {
  static const Model model = *Model::open(kMoeModel);
  return model;
}

ListeningProcess::ListeningProcess(const std::string& model, const std::string& listen,
                                   const std::string& token_file) {
  std::vector<std::string> words = {TESSERA_PROGRAM, "worker"};
  if (!model.empty()) words.push_back(model);
  for (const std::string& word :
       {std::string("--config"), std::string("/dev/null"), std::string("--listen"), listen,
        std::string("--token-file"), token_file, std::string("--threads"), std::string("1"),
        std::string("--budget"), std::string("2GiB"), std::string("--log-level"),
        std::string("error")})
    words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int out[2];
  if (::pipe(out) != 0) return;
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::close(out[0]);
    ::close(out[1]);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out[1]);
  std::string line;
  for (char c = 0; ::read(out[0], &c, 1) == 1 && c != '\n';) line += c;
  ::close(out[0]);
  if (const std::size_t at = line.find(" at "); at != std::string::npos)
    address_ = line.substr(at + 4);
}

ListeningProcess::~ListeningProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Rig& Rig::get() {
  static Rig rig;
  return rig;
}

Rig::Rig()
    : folder_([] {
        // What was measured of this machine is not looked at.
        ::setenv("XDG_CACHE_HOME", (scratch_folder() + "/empty").c_str(), 1);
        ::setenv("TESSERA_CONFIG", "/dev/null", 1);
        set_log_level(LogLevel::error);
        write_file(scratch_folder() + "/token", "a token of this test alone\n");
        return scratch_folder();
      }()),
      token_(folder_ + "/token"),
      file_(folder_ + "/file"),
      template_(folder_ + "/template"),
      profile_(folder_ + "/profile.csv"),
      unix_(kMoeModel, "unix:" + folder_ + "/worker.sock", token_),
      tcp_(kMoeModel, "tcp:127.0.0.1:0", token_),
      empty_("", "unix:" + folder_ + "/empty.sock", token_) {
  write_file(file_, "another token of this test\n");
  write_file(template_, "{% for m in messages %}<{{ m.content }}>{% endfor %}");
  write_file(profile_, skewed_profile(capability_model()));
}

void Rig::keep_measurements_apart(bool apart) const {
  ::setenv("XDG_CACHE_HOME", (folder_ + (apart ? "/measured" : "/empty")).c_str(), 1);
}

void Rig::make_times_uneven(Topology topology) const {
  keep_measurements_apart(true);
  const Result<nlohmann::json> plan =
      plan_of(joined(this->topology(topology), {{"placement.layer_times", {"measure"}}}));
  EXPECT_TRUE(plan) << plan.error().message;
  const std::string first = devices(topology).front(), last = devices(topology).back();
  // A worker that is started goes by its words there, not by its name.
  const bool starts_first = topology == Topology::layers_first;
  const std::string path = folder_ + "/measured/tessera/machine.json";
  nlohmann::json entries = nlohmann::json::parse(read_file(path));
  for (nlohmann::json& entry : entries) {
    if (!entry.contains("layers")) continue;
    const std::string device = entry["key"]["device"];
    const bool is_first = starts_first ? device != last : device == first;
    for (nlohmann::json& layer : entry["layers"])
      layer = is_first ? nlohmann::json{1.0, 1e-6} : nlohmann::json{1e-6, 1.0};
    entry["call"] = {0.0, 0.0};
    entry["head_s"] = 0.0;
  }
  write_file(path, entries.dump());
}

Settings Rig::topology(Topology topology) const {
  const Settings spawned = {{"worker.spawn", {kExpertsWorker}}};
  const Settings away = {{"experts.resident", {"30%"}}};
  const Settings with_token = {{"worker.token_file", {token_}}};
  switch (topology) {
    case Topology::one:
      return {};
    case Topology::split:
      return {{"placement.target_devices", {"cpu:0,cpu:1"}}};
    case Topology::split_three:
      return {{"placement.target_devices", {"cpu:0,cpu:1,cpu:2"}}, {"placement.threads", {"3"}}};
    case Topology::layers_spawned:
      return {{"worker.spawn", {kLayersWorker}}};
    case Topology::layers_unix:
      return {{"placement.target_devices", {"cpu,worker:" + unix_.address()}}};
    case Topology::layers_tcp:
      return joined(with_token, {{"placement.target_devices", {"cpu,worker:" + tcp_.address()}}});
    case Topology::layers_sent:
      return {{"placement.target_devices", {"cpu,worker:" + empty_.address()}}};
    case Topology::layers_chain:
      return {{"worker.spawn", {kLayersWorker, kLayersWorker}},
              {"placement.target_devices", {"cpu:0,worker:0,worker:1,cpu:1"}}};
    case Topology::layers_first:
      return {{"worker.spawn", {kLayersWorker}}, {"placement.target_devices", {"worker:0,cpu"}}};
    case Topology::experts_here:
      return away;
    case Topology::experts_spawned:
      return joined(spawned, away);
    case Topology::experts_unix:
      return joined(away, {{"worker.experts", {unix_.address()}}});
    case Topology::experts_tcp:
      return joined(joined(with_token, away), {{"worker.experts", {tcp_.address()}}});
    case Topology::experts_sent:
      return joined(away, {{"worker.experts", {empty_.address()}}});
    case Topology::experts_two:
      return joined(away, {{"worker.spawn", {kExpertsWorker, kExpertsWorker}}});
    case Topology::experts_split:
      return joined(joined(spawned, away), {{"placement.target_devices", {"cpu:0,cpu:1"}}});
    case Topology::both_roles:
      return joined(away, {{"worker.spawn", {kLayersWorker, kExpertsWorker}}});
  }
  return {};
}

std::vector<std::string> Rig::devices(Topology topology) const {
  const Settings made = this->topology(topology);
  const auto given = made.find("placement.target_devices");
  if (given == made.end())  // one that is started for layers comes after this process
    return (of(topology) & kLayerWorkers) != 0 ? std::vector<std::string>{"cpu", "worker:0"}
                                               : std::vector<std::string>{"cpu"};
  std::vector<std::string> devices;
  std::istringstream names(given->second.front());
  for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
  return devices;
}

Settings Rig::setting(std::string_view key, std::string_view value, Topology topology) const {
  const std::vector<std::string> devices = this->devices(topology);
  const std::string most =
      std::to_string(capability_model().spec().n_layer() + 1 - static_cast<int>(devices.size()));
  std::string split = most, last = most;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    split += ",1";
    last.insert(0, "1,");
  }
  std::string text(value);
  replace(text, "{file}", file_);
  replace(text, "{token}", token_);
  replace(text, "{template}", template_);
  replace(text, "{profile}", profile_);
  replace(text, "{nowhere}", missing_path());
  replace(text, "{split}", split);
  replace(text, "{last}", last);
  std::vector<std::string> values;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool of_each = word.find("{device}") != std::string::npos;
    for (const std::string& device : of_each ? devices : std::vector<std::string>{""}) {
      values.push_back(word);
      replace(values.back(), "{device}", device);
    }
  }
  return {{std::string(key), values}};
}

Result<cli::Config> resolve(const Settings& settings) {
  std::vector<std::string> words = {kMoeModel};
  for (const auto& [key, values] : settings) {
    const cli::Option* option = cli::find_option(key);
    for (const std::string& value : values) {
      words.push_back(last_flag(*option));
      if (option->type != cli::OptionType::boolean) words.push_back(value);
    }
  }
  TESSERA_ASSIGN(cli::Config config, cli::Config::resolve(cli::command_info(cli::kServe), words));
  TESSERA_TRY(cli::check_placement(config));
  return config;
}

namespace {

// A worker that listens may not have noticed yet that the client before has left.
template <typename Try>
auto patiently(const Try& once) {
  auto result = once();
  for (int i = 0; i < 20 && !result && result.error().message.find("busy") != std::string::npos;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    result = once();
  }
  return result;
}

Result<nlohmann::json> try_plan(const Settings& settings) {
  TESSERA_ASSIGN(const cli::Config config, resolve(settings));
  const Model& model = capability_model();
  TESSERA_ASSIGN(const Plan plan, cli::plan_model(config, model, {}));
  nlohmann::json json = plan_json(plan);
  for (const char* measured : {"expert_costs", "predicted"}) json.erase(measured);
  for (nlohmann::json& shard : json["shards"]) {
    for (const char* passing : {"free_bytes", "read_bytes_per_s", "op_per_s"}) shard.erase(passing);
    const std::int64_t budget = shard["budget_bytes"];
    if (budget != 1024 * kMiB && budget != 1536 * kMiB) shard.erase("budget_bytes");
  }
  for (nlohmann::json& worker : json["expert_workers"]) {
    worker.erase("free_bytes");
    worker.erase("budget_bytes");
    for (const char* measured : {"round_trip_us", "read_bytes_per_s", "op_per_s"})
      worker.erase(measured);
  }
  return json;
}

Result<Computed> try_compute(const Settings& settings) {
  TESSERA_ASSIGN(const cli::Config config, resolve(settings));
  const Model& model = capability_model();
  MetricsRegistry metrics;
  Computed computed;
  ::munlockall();  // what those before have locked
  {
    TESSERA_ASSIGN(const cli::LoadedModel loaded,
                   cli::load_model(config, model, {.logit_rows = kRows}, metrics));
    computed.locked = locked_bytes();
    TESSERA_TRY(forward(loaded, std::min(kRows, loaded.plan.prefill_chunk), computed.logits));
  }
  const std::string page = metrics.render();
  computed.calls = sum_of(page, "tessera_moe_calls_total{tier=\"worker\"}");
  computed.fallbacks = sum_of(page, "tessera_moe_fallback_total");
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("tessera_moe_bytes_total{") && line.find("\"out\"") != std::string::npos)
      computed.bytes_sent += std::stod(line.substr(line.rfind(' ')));
  return computed;
}

}  // namespace

Result<nlohmann::json> plan_of(const Settings& settings) {
  return patiently([&] { return try_plan(settings); });
}

Result<Computed> compute(const Settings& settings) {
  return patiently([&] { return try_compute(settings); });
}

}  // namespace tessera::testing
