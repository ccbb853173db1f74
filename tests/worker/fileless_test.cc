// Workers without a model file: they compute what those with one do, whatever the transport, and
// take no part of the model twice.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <thread>

#include "tests/golden_data.h"
#include "tests/worker/fault.h"
#include "tests/worker/layer_topology.h"
#include "worker/connect.h"
#include "worker/remote_experts.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;
using enum worker::TransportChoice;

// `tessera worker --listen unix:...`, with a model or without.
class Listening {
 public:
  explicit Listening(std::vector<std::string> more = {}) {
    static int count = 0;
    path_ = ::testing::TempDir() + fmt::format("fileless_{}_{}", ::getpid(), count++);
    std::vector<std::string> words = {"worker",      "--config", "/dev/null", "--threads",    "1",
                                      "--log-level", "warn",     "--listen",  "unix:" + path_};
    words.insert(words.end(), more.begin(), more.end());
    auto made = worker::WorkerProcess::spawn({.binary = TESSERA_PROGRAM, .arguments = words});
    EXPECT_TRUE(made) << made.error().message;
    if (made) process_ = *std::move(made);
    EXPECT_TRUE(eventually([&] { return ::access(path_.c_str(), F_OK) == 0; }));
  }
  ~Listening() { ::unlink(path_.c_str()); }
  std::string address() const { return "unix:" + path_; }
  pid_t pid() const { return process_->pid(); }

 private:
  std::string path_;
  std::unique_ptr<worker::WorkerProcess> process_;
};

class FilelessLayers : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, FilelessLayers, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(FilelessLayers, SameBitsAsOneProcess) {
  const std::string model = golden_path(GetParam(), "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path(GetParam(), ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(150);
  ModelRunner plain(model, {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> whole = plain.logits(ids, 64);
  const Listening first, second;
  // The same processes for one topology after another.
  for (const auto transport : {shared, stream}) {
    for (const std::string topology : {"LW", "WL", "W", "WW"}) {
      SCOPED_TRACE(topology + (transport == stream ? ", stream" : ""));
      LayerWorkers workers{.transport = transport,
                           .addresses = {first.address(), second.address()}};
      ModelRunner runner(model, on_topology(model, topology, {}, workers));
      ASSERT_TRUE(runner.ready());
      EXPECT_TRUE(runner.logits(ids, 64) == whole);
    }
  }
}

// Stands between a client and a worker, and ends the first connection after so many bytes to the
// worker. (The first that carries so many: the server asks the worker about itself before.)
class CuttingRelay {
 public:
  CuttingRelay(const std::string& to, std::size_t cut_after)
      : listener_(*worker::Listener::open(*worker::Address::parse(
            fmt::format("unix:{}relay_{}", ::testing::TempDir(), ::getpid())))),
        thread_([this, to, cut_after] { run(to, cut_after); }) {}
  ~CuttingRelay() {
    listener_.stop();
    thread_.join();
  }
  std::string address() const { return listener_.address().text(); }
  std::size_t to_worker() const { return to_worker_; }
  bool has_cut() const { return has_cut_; }

 private:
  void run(const std::string& to, std::size_t cut_after) {
    while (!listener_.stopped()) {
      Result<worker::Fd> client = listener_.take(worker::after(100ms));
      if (!client || !*client) continue;
      const worker::Fd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un name{.sun_family = AF_UNIX};
      const std::string path = to.substr(to.find(':') + 1);
      std::copy(path.begin(), path.end(), name.sun_path);
      if (::connect(other.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0)
        forward(client->get(), other.get(), cut_after);
    }
  }
  void forward(int client, int worker, std::size_t cut_after) {
    std::array<char, 4096> buffer;
    std::size_t passed = 0;
    pollfd ends[2] = {{client, POLLIN, 0}, {worker, POLLIN, 0}};
    while (!listener_.stopped()) {
      if (::poll(ends, 2, 100) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        const ssize_t n = ::recv(ends[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) continue;
        if (n <= 0 || !send_all(ends[1 - i].fd, buffer.data(), static_cast<std::size_t>(n))) return;
        if (i == 1) continue;
        passed += static_cast<std::size_t>(n);
        to_worker_ += static_cast<std::size_t>(n);
        if (!has_cut_ && passed > cut_after) {
          has_cut_ = true;
          return;
        }
      }
    }
  }
  static bool send_all(int fd, const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
      if (n <= 0) return false;
      data += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

  worker::Listener listener_;
  std::atomic<std::size_t> to_worker_{0};
  std::atomic<bool> has_cut_{false};
  std::thread thread_;
};

TEST(FilelessTransfer, GoesOnAfterTheConnectionBroke) {
  const std::string model = golden_path("gemma4moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path("gemma4moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(20);
  ModelRunner plain(model, {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::uint64_t size = plain.model().file().file_bytes();
  const Listening listening;
  const CuttingRelay relay(listening.address(), size * 2 / 3);
  LayerWorkers workers{.transport = stream, .addresses = {relay.address()}};
  workers.lifecycle.backoff_first = 20ms;
  ModelRunner runner(model, on_topology(model, "W", {}, workers));
  ASSERT_TRUE(runner.ready());
  EXPECT_TRUE(relay.has_cut());
  EXPECT_TRUE(runner.logits(ids, 64) == plain.logits(ids, 64));
  // What was lost are the pieces under way, not what had come.
  EXPECT_LT(relay.to_worker(), size + size / 3);
}

// A worker of experts and jobs of one layer after another.
struct Sums {
  std::vector<std::vector<double>> of_layer;
};

worker::WorkerSite experts_site() {
  worker::WorkerSite site{.name = "worker:0", .role = worker::Role::experts};
  site.job_limit = site.lifecycle.dead_after = kNever;
  return site;
}

Sums sums_of(const worker::WorkerSite& site, const Model& model,
             const std::vector<LayerExperts>& experts) {
  constexpr int kRows = 5;
  MetricsRegistry metrics;
  auto made = worker::ExpertConnection::create(
      site, {.id = 0, .experts = experts, .max_rows = kRows, .required = true}, model, metrics);
  EXPECT_TRUE(made) << made.error().message;
  if (!made) return {};
  const Status ready = (*made)->wait_ready();
  EXPECT_TRUE(ready) << ready.error().message;
  if (!ready) return {};
  const std::unique_ptr<ExpertExecutor> executor = (*made)->executor();
  const auto width = static_cast<std::size_t>(model.spec().n_embd);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  Sums sums;
  for (int layer = 0; layer < model.spec().n_layer(); ++layer) {
    const auto& home = experts[static_cast<std::size_t>(layer)].home;
    std::vector<float> rows(kRows * width);
    for (float& value : rows) value = normal(random);
    std::vector<RoutedPair> pairs;
    std::vector<std::int32_t> owned;
    for (std::size_t e = 0; e < home.size(); ++e)
      if (home[e] == ExpertHome::worker(0)) owned.push_back(static_cast<std::int32_t>(e));
    if (owned.empty()) continue;
    // As many a row as the model routes, in turn.
    const int used = model.spec().layers[static_cast<std::size_t>(layer)].moe->n_used;
    for (int i = 0; i < kRows * used; ++i)
      pairs.push_back({.row = i / used,
                       .expert = owned[static_cast<std::size_t>(i) % owned.size()],
                       .slot = 0,
                       .weight = 0.25f});
    const Status sent =
        executor->submit({.layer = layer, .n_rows = kRows, .rows = rows, .pairs = pairs});
    EXPECT_TRUE(sent) << sent.error().message;
    std::vector<double>& out = sums.of_layer.emplace_back(rows.size());
    const auto report = executor->collect(out);
    EXPECT_TRUE(report) << report.error().message;
  }
  return sums;
}

TEST(FilelessExperts, SameBitsAsWithAFile) {
  for (const char* name : {"qwen35moe", "laguna", "gemma4moe"}) {
    SCOPED_TRACE(name);
    const std::string path = golden_path(name, "-bf16.gguf");
    const Model model = *Model::open(path);
    std::vector<LayerExperts> experts(model.spec().layers.size());
    for (std::size_t l = 0; l < experts.size(); ++l)
      for (int e = 0; model.spec().layers[l].moe && e < model.spec().layers[l].moe->n_expert; ++e)
        // Two of each layer of four.
        experts[l].home.push_back(e % 4 < 2 ? ExpertHome::worker(0) : ExpertHome::resident());
    worker::WorkerSite with_file = experts_site();
    with_file.spawn = worker::SpawnOptions{
        .binary = TESSERA_PROGRAM,
        .arguments = {"worker", path, "--config", "/dev/null", "--threads", "1"}};
    const Sums expected = sums_of(with_file, model, experts);
    ASSERT_FALSE(expected.of_layer.empty());
    const Listening listening;
    for (const auto transport : {shared, stream}) {
      worker::WorkerSite without = experts_site();
      without.address = *worker::Address::parse(listening.address());
      without.transport = transport;
      EXPECT_TRUE(sums_of(without, model, experts).of_layer == expected.of_layer);
    }
  }
}

// One process takes both roles and another model, and gives back what it held before.
TEST(FilelessRoles, OneAfterAnother) {
  const Listening listening;
  for (const char* name : {"qwen35moe", "laguna", "qwen35moe"}) {
    const std::string path = golden_path(name, "-bf16.gguf");
    const GoldenData golden = GoldenData::load(golden_path(name, ".bin"));
    const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(20);
    {
      const Model model = *Model::open(path);
      std::vector<LayerExperts> experts(model.spec().layers.size());
      for (std::size_t l = 0; l < experts.size(); ++l)
        if (model.spec().layers[l].moe)
          experts[l].home.assign(static_cast<std::size_t>(model.spec().layers[l].moe->n_expert),
                                 ExpertHome::worker(0));
      worker::WorkerSite site = experts_site();
      site.address = *worker::Address::parse(listening.address());
      EXPECT_FALSE(sums_of(site, model, experts).of_layer.empty());
    }
    ModelRunner plain(path, {.threads = 1});
    LayerWorkers workers{.addresses = {listening.address()}};
    ModelRunner runner(path, on_topology(path, "LW", {}, workers));
    ASSERT_TRUE(plain.ready() && runner.ready());
    EXPECT_TRUE(runner.logits(ids, 64) == plain.logits(ids, 64));
  }
}

// --- Refusals ---

// What a client is told whose layers the worker does not take.
std::string refusal_of(const Listening& listening, const std::string& path) {
  const Model model = *Model::open(path);
  MetricsRegistry metrics;
  worker::WorkerSite site{.name = "worker:0"};
  site.address = *worker::Address::parse(listening.address());
  site.lifecycle.backoff_first = 1ms;
  site.lifecycle.backoff_most = 5ms;
  ShardLayout layout;
  layout.end_layer = model.spec().n_layer();
  layout.max_rows = layout.max_logit_rows = 4;
  layout.slots = 1;
  layout.kv_pages.assign(kv_groups(model.spec()).size(), 2);
  auto shard = worker::RemoteShard::create(site, {.layout = layout, .context = 64}, model, metrics);
  EXPECT_TRUE(shard);
  const Status loaded = (*shard)->load(model, {});
  EXPECT_FALSE(loaded);
  return loaded ? "" : loaded.error().message;
}

// A worker with a file of its own is sent nothing and refuses another model, as ever.
TEST(FilelessRefusals, AFileOfItsOwnIsKept) {
  const Listening listening({golden_path("qwen3", "-bf16.gguf")});
  const std::string said = refusal_of(listening, golden_path("qwen35", "-bf16.gguf"));
  EXPECT_NE(said.find("refuses (model; its log says why)"), std::string::npos) << said;
}

TEST(FilelessRefusals, WhatDoesNotFitIsToldInNumbers) {
  const std::string path = golden_path("qwen3", "-bf16.gguf");
  for (const std::vector<std::string>& with : {std::vector{path}, {}}) {
    std::vector<std::string> words = {"--budget", "1048576"};
    words.insert(words.end(), with.begin(), with.end());
    const std::string said = refusal_of(Listening(words), path);
    EXPECT_NE(said.find("refuses (memory: layers 0-3 take "), std::string::npos) << said;
    EXPECT_NE(said.find(" MiB, the budget is "), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace tessera::testing
