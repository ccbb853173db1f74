// The plan's bytes against what processes use while they serve, with layers and experts in workers.
// Counted is everything but the model's file, whose pages give way; and since a load lets them go
// as it packs them, with them too where nothing is read from the file afterwards.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

// Resident memory outside of mappings of `file`.
double resident_bytes(int pid, const std::string& file) {
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  double bytes = 0;
  bool counted = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with("Rss:")) {
      if (counted) bytes += std::stod(line.substr(4)) * 1024.0;
    } else if (line.find('-') < line.find(' ')) {  // a mapping begins
      counted = !line.ends_with(file);
    }
  }
  return bytes;
}

// The most that a process has had since it began, with what it mapped.
double peak_bytes(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024.0;
  return 0;
}

// The most that a process and each of its children have had, until it is asked.
class Peaks {
 public:
  Peaks(const Served& served, std::string file)
      : thread_([this, &served, file = std::move(file)] {
          while (!done_) {
            look(served.pid(), file);
            for (const int child : served.children()) look(child, file);
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          }
        }) {}
  ~Peaks() { (void)take(); }
  const std::map<int, double>& take() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return peaks_;
  }

 private:
  void look(int pid, const std::string& file) {
    peaks_[pid] = std::max(peaks_[pid], resident_bytes(pid, file));
  }
  std::map<int, double> peaks_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

const std::string& mini_model() {
  static const std::string path = [] {
    std::string file = scratch_folder() + "/mini_memory.gguf";
    EXPECT_EQ(run_program({{"synth", "qwen35moe", file, "--preset", "mini"}}).code, 0);
    return file;
  }();
  return path;
}

// A worker of layers is a device of the plan.
double planned_worker(const json& plan) {
  const auto own = [](const json& part) {
    return part["total_bytes"].get<double>() + part["host_bytes"].get<double>();
  };
  for (const json& shard : plan["shards"])
    if (shard["remote"].get<bool>()) return own(shard);
  return own(plan["expert_workers"][0]);
}

struct MemoryCase {
  const char* name;
  std::vector<std::string> options;
  bool reads_file = false;  // experts of the host, or those of a worker that is late
  bool dies = false;        // the worker, and the host computes for it
};

class PlannedMemory : public ::testing::TestWithParam<MemoryCase> {};
INSTANTIATE_TEST_SUITE_P(
    Placements, PlannedMemory,
    ::testing::Values(
        MemoryCase{"alone", {}}, MemoryCase{"host_experts", {"--expert-resident", "40%"}, true},
        MemoryCase{
            "expert_worker",
            {"--expert-resident", "40%", "--spawn-worker", "experts", "--expert-ipc-required"}},
        MemoryCase{"expert_worker_stream",
                   {"--expert-resident", "40%", "--spawn-worker", "experts",
                    "--expert-ipc-required", "--expert-ipc-transport", "stream"}},
        MemoryCase{
            "expert_worker_dies",
            {"--expert-resident", "0%", "--spawn-worker", "experts", "--prefill-chunk", "1024"},
            true,
            true},
        MemoryCase{"expert_worker_stream_dies",
                   {"--expert-resident", "0%", "--spawn-worker", "experts", "--prefill-chunk",
                    "1024", "--expert-ipc-transport", "stream"},
                   true,
                   true},
        MemoryCase{"layer_worker", {"--spawn-worker", "layers,threads=1"}},
        MemoryCase{"layer_worker_stream",
                   {"--spawn-worker", "layers,threads=1", "--worker-transport", "stream"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlannedMemory, IsWhatTheProcessesUse) {
  // Measured times would cut the layers, with shards that the plan does not know of.
  std::vector<std::string> options = {"--ctx", "4096", "--parallel", "1", "--layer-times", "bytes"};
  options.insert(options.end(), GetParam().options.begin(), GetParam().options.end());
  Served served(options, mini_model());
  json plan;
  std::map<int, double> peaks, with_file;
  {
    Peaks watch(served, mini_model());
    const int length = GetParam().dies ? 1100 : 600;
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(served.complete(greedy(some_ids(length, i), 16)).status, 200);
    if (GetParam().dies) {
      for (const int child : served.children()) ::kill(child, SIGKILL);
      EXPECT_EQ(served.complete(greedy(some_ids(length, 2), 16)).status, 200);
    }
    plan = json::parse(http_test::get(served.port(), "/props").body)["plan"];
    peaks = watch.take();
    for (const auto& [pid, peak] : peaks) with_file[pid] = peak_bytes(pid);
  }
  for (const auto& [pid, peak] : peaks) {
    double planned = plan["total_bytes"].get<double>();
    const char* what = "server";
    if (pid != served.pid()) {
      what = "worker";
      planned = planned_worker(plan);
    }
    std::printf(
        "%s, %s: planned %.1f MB, peak %.1f MB, peak / planned %.3f; %.3f with the model's file\n",
        GetParam().name, what, planned / 1e6, peak / 1e6, peak / planned, with_file[pid] / planned);
    if (GetParam().dies && pid != served.pid()) continue;  // killed, or begun a moment ago
    EXPECT_NEAR(peak / planned, 1.0, 0.02);
    if (!GetParam().reads_file || pid != served.pid()) {
      EXPECT_NEAR(with_file[pid] / planned, 1.0, 0.02);
    }
  }
  if (!GetParam().dies) {
    EXPECT_EQ(peaks.size(), 1 + served.children().size());
  }
}

}  // namespace
}  // namespace tessera::testing
