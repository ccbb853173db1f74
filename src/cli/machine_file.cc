#include "cli/machine_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "base/within_memory.h"
#include "cli/loading.h"

namespace tessera::cli {
namespace {

// A longer file is none of ours; neither does one grow so long (kMostEntries).
constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr std::size_t kMostEntries = 200;

std::string file_path() {
  return cache_folder() + "/machine.json";
}

SortedJson key_of(int threads, cpu::Isa isa) {
  return {{"processor", processor_name()}, {"threads", threads}, {"isa", cpu::isa_name(isa)}};
}

// The entries, the oldest first: objects with a key.
std::vector<SortedJson> read_entries() {
  std::vector<SortedJson> entries;
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_path(), error)) return entries;
  const Result<std::string> text = read_file(file_path(), kMostBytes);
  if (!text) return entries;
  const SortedJson all = SortedJson::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array()) return entries;
  for (const SortedJson& entry : all)
    if (entry.is_object() && entry.contains("key")) entries.push_back(entry);
  return entries;
}

// Held while the file is read, changed and replaced, or two programs that measure at once would
// each forget what the other found. Where it cannot be had, one of them does.
class FileLock {
 public:
  FileLock() : fd_(::open((file_path() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  int fd_;
};

// In place of the one with its key.
void save_entry(SortedJson entry) {
  std::error_code error;
  std::filesystem::create_directories(cache_folder(), error);
  const FileLock lock;
  std::vector<SortedJson> entries = read_entries();
  std::erase_if(entries, [&](const SortedJson& old) { return old.at("key") == entry.at("key"); });
  entries.push_back(std::move(entry));
  if (entries.size() > kMostEntries)
    entries.erase(entries.begin(), entries.end() - static_cast<std::ptrdiff_t>(kMostEntries));
  const std::string written = fmt::format("{}.{}", file_path(), getpid());
  std::ofstream file(written);
  // Paths in it may be no UTF-8.
  file << SortedJson(entries).dump(1, ' ', false, SortedJson::error_handler_t::replace) << "\n";
  file.close();
  if (file) std::filesystem::rename(written, file_path(), error);
  if (!file || error) std::filesystem::remove(written, error);
}

std::optional<SortedJson> find_entry(const SortedJson& key) {
  for (const SortedJson& entry : read_entries())
    if (entry.at("key") == key) return entry;
  return std::nullopt;
}

// 0 for what is no number.
double number(const SortedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

// Bytes or operations a second; 0 for what no machine does, as of what a worker says of itself.
double speed(const SortedJson& object, const char* name) {
  const double found = number(object, name);
  return found >= 1e6 && found <= 1e15 ? found : 0.0;
}

// One thread for each core: others only take turns.
ThreadTeamOptions one_a_core(ThreadTeamOptions team) {
  std::sort(team.cpus.begin(), team.cpus.end());
  team.cpus.erase(std::unique(team.cpus.begin(), team.cpus.end()), team.cpus.end());
  const int cores = team.cpus.empty() ? usable_cores() : static_cast<int>(team.cpus.size());
  team.threads = std::min(team.threads, cores);
  return team;
}

SortedJson time_json(const StepTime& time) {
  return {time.prompt_row_s, time.token_s};
}

// Of what is no pair of numbers, times that are not usable().
StepTime time_of(const SortedJson& pair) {
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number())
    return {.prompt_row_s = -1.0, .token_s = -1.0};
  return {.prompt_row_s = pair[0].get<double>(), .token_s = pair[1].get<double>()};
}

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':')));
  return "unknown";
}

MeasuredSpeed measured_speed(const MachineSpeed& speed, int threads) {
  const double op = speed.int8_op_per_s > 0.0 ? speed.int8_op_per_s : speed.f32_flop_per_s;
  return {.read_bytes_per_s = speed.read_bytes_per_s,
          .op_per_s = op * std::min(threads, usable_cores()),
          .thread_read_bytes_per_s = speed.thread_read_bytes_per_s};
}

void save_speed(const MeasuredSpeed& speed, int threads, cpu::Isa isa) {
  save_entry({{"key", key_of(threads, isa)},
              {"read_bytes_per_s", speed.read_bytes_per_s},
              {"op_per_s", speed.op_per_s},
              {"thread_read_bytes_per_s", speed.thread_read_bytes_per_s}});
}

std::optional<MeasuredSpeed> saved_speed(int threads, cpu::Isa isa) {
  const std::optional<SortedJson> entry = find_entry(key_of(threads, isa));
  if (!entry) return std::nullopt;
  const MeasuredSpeed saved{speed(*entry, "read_bytes_per_s"), speed(*entry, "op_per_s"),
                            speed(*entry, "thread_read_bytes_per_s")};
  if (saved.read_bytes_per_s > 0.0 && saved.op_per_s > 0.0 && saved.thread_read_bytes_per_s > 0.0)
    return saved;
  return std::nullopt;
}

std::optional<MeasuredSpeed> quick_speed(const ThreadTeamOptions& team, cpu::Isa isa,
                                         std::int64_t memory) {
  const ThreadTeamOptions looking = one_a_core(team);
  const auto seen = within_memory([&]() -> Result<MachineSpeed> {
    ThreadTeam threads(looking);
    return look_at_machine(threads, isa, memory);
  });
  if (!seen) return std::nullopt;
  const MeasuredSpeed speed = measured_speed(*seen, looking.threads);
  save_speed(speed, team.threads, isa);
  return speed;
}

void save_expert_times(const SortedJson& key, const HostExpertTimes& times) {
  save_entry({{"key", key}, {"call_s", times.call_s}, {"bytes_per_s", times.bytes_per_s}});
}

std::optional<HostExpertTimes> saved_expert_times(const SortedJson& key) {
  const std::optional<SortedJson> entry = find_entry(key);
  if (!entry) return std::nullopt;
  const HostExpertTimes times{number(*entry, "call_s"), number(*entry, "bytes_per_s")};
  return usable(times) ? std::optional(times) : std::nullopt;
}

void save_layer_times(const SortedJson& key, const MeasuredLayers& measured) {
  const LayerTimes& times = measured.times;
  SortedJson layers = SortedJson::array();
  for (const StepTime& time : times.layers) layers.push_back(time_json(time));
  save_entry({{"key", key},
              {"layers", std::move(layers)},
              {"call", time_json(times.call)},
              {"head_s", times.head_s},
              {"spread", measured.spread}});
}

std::optional<MeasuredLayers> saved_layer_times(const SortedJson& key, int n_layer) {
  const std::optional<SortedJson> entry = find_entry(key);
  if (!entry) return std::nullopt;
  const SortedJson layers = entry->value("layers", SortedJson());
  LayerTimes times{.call = time_of(entry->value("call", SortedJson())),
                   .head_s = number(*entry, "head_s")};
  if (!layers.is_array()) return std::nullopt;
  for (const SortedJson& pair : layers) times.layers.push_back(time_of(pair));
  if (!usable(times, n_layer)) return std::nullopt;
  return MeasuredLayers{.times = std::move(times), .spread = number(*entry, "spread")};
}

}  // namespace tessera::cli
