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

// Resident memory outside of mappings of a file.
struct Resident {
  double own = 0;
  double shared = 0;  // with the other end of a connection
};
Resident resident_bytes(int pid, const std::string& file) {
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  Resident bytes;
  double* of = nullptr;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with("Rss:")) {
      if (of != nullptr) *of += std::stod(line.substr(4)) * 1024.0;
    } else if (line.find('-') < line.find(' ')) {  // a mapping begins
      of = line.find("/memfd:tessera-worker") != std::string::npos ? &bytes.shared
           : line.ends_with(file)                                  ? nullptr
                                                                   : &bytes.own;
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
  const std::map<int, Resident>& take() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return peaks_;
  }

 private:
  void look(int pid, const std::string& file) {
    const Resident now = resident_bytes(pid, file);
    Resident& most = peaks_[pid];
    most = {std::max(most.own, now.own), std::max(most.shared, now.shared)};
  }
  std::map<int, Resident> peaks_;
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
  bool dies = false;        // the worker, and the host computes for it until another one comes
};

// What was seen of a process. What both ends share counts at the server, which makes it.
struct Use {
  std::string what;
  double planned = 0;
  double peak = 0;
  double with_file = 0;
};

class PlannedMemory : public ::testing::TestWithParam<MemoryCase> {
 protected:
  static void expect_as_planned(const Use& use) {
    std::printf(
        "%s, %s: planned %.1f MB, peak %.1f MB, peak / planned %.3f; %.3f with the model's file\n",
        GetParam().name, use.what.c_str(), use.planned / 1e6, use.peak / 1e6,
        use.peak / use.planned, use.with_file / use.planned);
    EXPECT_NEAR(use.peak / use.planned, 1.0, 0.02) << use.what;
    if (!GetParam().reads_file || use.what != kServer) {
      EXPECT_NEAR(use.with_file / use.planned, 1.0, 0.02) << use.what;
    }
  }
  static Use use_of(const std::string& what, int pid, const Resident& resident) {
    const bool server = what == kServer;
    return {.what = what,
            .peak = resident.own + (server ? resident.shared : 0),
            .with_file = peak_bytes(pid) - (server ? 0 : resident.shared)};
  }
  // Asks until the worker computed a whole chunk: more pairs than the generated tokens have.
  static bool uses_worker(const Served& served) {
    constexpr int kTokens = 16, kLayers = 8, kUsed = 8;
    const auto pairs = [&] { return served.metric("tessera_moe_pairs_total{tier=\"worker\"}"); };
    return eventually([&] {
      const double before = pairs();
      EXPECT_EQ(served.complete(greedy(some_ids(2 * kChunk), kTokens)).status, 200);
      return pairs() > before + kTokens * kLayers * kUsed;
    });
  }
  // Kills the worker once it has computed, and waits for the next one to have done so.
  static void replace_worker(const Served& served, std::vector<Use>& uses) {
    const auto only_child = [&] {
      const std::vector<int> children = served.children();
      return children.size() == 1 ? children.front() : 0;
    };
    ASSERT_TRUE(uses_worker(served));
    const int killed = only_child();
    ASSERT_GT(killed, 0);
    uses.push_back(use_of("worker", killed, resident_bytes(killed, mini_model())));
    ::kill(killed, SIGKILL);
    EXPECT_EQ(served.complete(greedy(some_ids(2 * kChunk), 16)).status, 200);  // by the host
    ASSERT_TRUE(
        served.becomes("tessera_worker_starts_total{worker=\"worker:0\",reason=\"exited\"}", 1));
    ASSERT_TRUE(uses_worker(served));
    const int next = only_child();
    ASSERT_TRUE(next > 0 && next != killed);
    // Not from the samples: between fork and exec it has the server's memory.
    uses.push_back(use_of("next worker", next, resident_bytes(next, mini_model())));
  }

  static constexpr const char* kServer = "server";
  static constexpr int kChunk = 512;  // of those whose worker dies
};
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
            {"--expert-resident", "0%", "--spawn-worker", "experts", "--prefill-chunk", "512"},
            true,
            true},
        MemoryCase{"expert_worker_stream_dies",
                   {"--expert-resident", "0%", "--spawn-worker", "experts", "--prefill-chunk",
                    "512", "--expert-ipc-transport", "stream"},
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
  std::vector<Use> uses;
  {
    Peaks watch(served, mini_model());
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(served.complete(greedy(some_ids(600, i), 16)).status, 200);
    plan = json::parse(http_test::get(served.port(), "/props").body)["plan"];
    if (GetParam().dies) {
      replace_worker(served, uses);
      // The server's end of both connections.
      uses.push_back(use_of(kServer, served.pid(), watch.take().at(served.pid())));
    } else {
      for (const auto& [pid, peak] : watch.take())
        uses.push_back(use_of(pid == served.pid() ? kServer : "worker", pid, peak));
      EXPECT_EQ(uses.size(), 1 + served.children().size());
    }
  }
  for (Use& use : uses) {
    use.planned = use.what == kServer ? plan["total_bytes"].get<double>() : planned_worker(plan);
    expect_as_planned(use);
  }
}

}  // namespace
}  // namespace tessera::testing
