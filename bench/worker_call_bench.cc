// Parts of a job for a worker of experts, by its rows: what the client takes to hand it over, what
// the worker computes, and the rest, which is bell, queue and the way back. Microseconds.
//
//   worker_call_bench TESSERA MODEL [ROUNDS]      default 2000 jobs a line
//
// Every expert is the worker's, which computes with one thread. The rows of a job are random and
// choose as many random experts as the model uses; layers take turns, so the weights of a large
// model come from memory. `pause` sleeps before each job, longer than either end spins, so that
// both must be woken.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>

#include "base/log.h"
#include "pipeline/pipeline.h"
#include "worker/remote_experts.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRows = 256;

struct Parts {
  std::vector<double> handed, computed, rest, all;
};

double quantile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// Jobs of `rows` rows, one after another.
class Jobs {
 public:
  Jobs(const ModelSpec& spec, const ShardLayout& layout) : spec_(spec) {
    for (int layer = layout.first_layer; layer < layout.end_layer; ++layer)
      if (spec.layers[static_cast<std::size_t>(layer)].moe) layers_.push_back(layer);
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(spec.n_embd));
    for (float& value : rows_) value = normal(random_);
  }

  ExpertJob next(int rows) {
    const int layer = layers_[at_++ % layers_.size()];
    const MoeSpec& moe = *spec_.layers[static_cast<std::size_t>(layer)].moe;
    std::vector<std::int32_t> experts(static_cast<std::size_t>(moe.n_expert));
    for (int e = 0; e < moe.n_expert; ++e) experts[static_cast<std::size_t>(e)] = e;
    pairs_.clear();
    for (int row = 0; row < rows; ++row) {
      std::shuffle(experts.begin(), experts.end(), random_);
      for (int k = 0; k < moe.n_used; ++k)
        pairs_.push_back({.row = row,
                          .expert = experts[static_cast<std::size_t>(k)],
                          .weight = 1.0f / static_cast<float>(moe.n_used)});
    }
    const auto width = static_cast<std::size_t>(spec_.n_embd);
    return {.layer = layer,
            .n_rows = rows,
            .rows = std::span(rows_).first(static_cast<std::size_t>(rows) * width),
            .pairs = pairs_};
  }

 private:
  const ModelSpec& spec_;
  std::mt19937 random_{1};
  std::vector<int> layers_;
  std::size_t at_ = 0;
  std::vector<float> rows_;
  std::vector<RoutedPair> pairs_;
};

Result<Parts> measure(ExpertExecutor& worker, Jobs& jobs, int rows, int rounds, int n_embd,
                      std::chrono::microseconds pause) {
  std::vector<double> sums(static_cast<std::size_t>(rows) * static_cast<std::size_t>(n_embd));
  Parts parts;
  const auto us = [](Clock::duration took) {
    return std::chrono::duration<double, std::micro>(took).count();
  };
  for (int round = -rounds / 10; round < rounds; ++round) {
    const ExpertJob job = jobs.next(rows);
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const auto begin = Clock::now();
    TESSERA_TRY(worker.submit(job));
    const auto handed = Clock::now();
    TESSERA_ASSIGN(const ExpertReport report, worker.collect(sums));
    const auto end = Clock::now();
    if (round < 0) continue;
    const auto computed = static_cast<double>(report.compute_us);
    parts.handed.push_back(us(handed - begin));
    parts.computed.push_back(computed);
    parts.rest.push_back(us(end - handed) - computed);
    parts.all.push_back(us(end - begin));
  }
  return parts;
}

Status bench(const std::string& program, const std::string& path, int rounds) {
  TESSERA_ASSIGN(const Model model, Model::open(path));
  Inventory inventory = probe_inventory(1);
  inventory.expert_workers.push_back({.name = "worker:0", .budget = std::int64_t{1} << 40});
  TESSERA_ASSIGN(const Plan plan,
                 make_plan(model, inventory,
                           {.context = 512, .prefill_chunk = kMostRows, .expert_resident = 0.0}));
  const ShardLayout& layout = plan.shards.front().layout;
  fmt::print("{:<11}{:<7}{:>6}{:>17}{:>19}{:>19}{:>19}\n", "transport", "", "rows", "hand over",
             "compute", "bell and return", "job");
  for (const auto transport : {worker::TransportChoice::shared, worker::TransportChoice::stream}) {
    worker::WorkerSite site{
        .name = "worker:0", .role = worker::Role::experts, .transport = transport};
    site.spawn = worker::SpawnOptions{.binary = program,
                                      .arguments = {"worker", path, "--config", "/dev/null",
                                                    "--threads", "1", "--log-level", "warn"}};
    MetricsRegistry registry;
    TESSERA_ASSIGN(
        const auto connection,
        worker::ExpertConnection::create(
            site, {.experts = layout.experts, .max_rows = layout.max_rows}, model, registry));
    TESSERA_TRY(connection->wait_ready());
    const std::unique_ptr<ExpertExecutor> worker = connection->executor();
    Jobs jobs(model.spec(), layout);
    for (const bool pause : {false, true}) {
      for (const int rows : {1, 4, 16, kMostRows}) {
        const int times = std::max(20, (pause ? rounds / 10 : rounds) / rows);
        TESSERA_ASSIGN(Parts parts, measure(*worker, jobs, rows, times, model.spec().n_embd,
                                            std::chrono::microseconds(pause ? 2000 : 0)));
        fmt::print("{:<11}{:<7}{:>6}",
                   transport == worker::TransportChoice::shared ? "rings" : "socket",
                   pause ? "pause" : "", rows);
        for (std::vector<double>* part : {&parts.handed, &parts.computed, &parts.rest, &parts.all})
          fmt::print("{:>10.1f} ({:>6.1f})", quantile(*part, 0.5), quantile(*part, 0.99));
        fmt::print("\n");
        std::fflush(stdout);
      }
    }
  }
  return {};
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: worker_call_bench TESSERA MODEL [ROUNDS]\n");
    return 2;
  }
  tessera::set_log_level(tessera::LogLevel::warn);
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 2000;
  if (const tessera::Status status = tessera::bench(argv[1], argv[2], rounds); !status) {
    fmt::print(stderr, "worker_call_bench: {}\n", status.error().message);
    return 1;
  }
  return 0;
}
