// Jobs of one row for the host's cores, as beside a GPU: how long they take, and how much of that
// is gone where the experts were foreseen while nothing else was to do.
//
//   tessera synth qwen35moe m.gguf --preset full --types q4_k_m --set block_count=16
//   host_experts_bench m.gguf THREADS [REPEAT]
//
// One job behind the other, of layers in turn and experts at random, so that no cache has them; the
// gap is the time between two jobs, all of which the foreseen ones have. Medians, microseconds.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include "base/pause.h"
#include "experts/expert_reads.h"
#include "experts/host_executor.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Setting {
  int experts;
  double gap_us;
  bool foreseen;
};

class Jobs {
 public:
  Jobs(const Model& model, ExpertExecutor& host) : model_(model), host_(host) {
    const auto n = static_cast<std::size_t>(model.spec().n_embd);
    for (std::size_t i = 0; i < n; ++i) row_.push_back(static_cast<float>(i % 7) - 3.0f);
    sums_.resize(n);
  }

  Result<double> median_us(const Setting& setting, int repeat) {
    std::vector<double> took;
    for (int i = 0; i < repeat; ++i) {
      const int layer = i % model_.spec().n_layer();
      choose(layer, setting.experts);
      const auto begin = Clock::now();
      if (setting.foreseen) host_.foresee(layer, experts_);
      while (microseconds_since(begin) < setting.gap_us) pause();
      const auto start = Clock::now();
      TESSERA_TRY(host_.submit({.layer = layer, .n_rows = 1, .rows = row_, .pairs = pairs_}));
      TESSERA_ASSIGN(const ExpertReport report, host_.collect(sums_));
      static_cast<void>(report);
      took.push_back(microseconds_since(start));
    }
    std::nth_element(took.begin(), took.begin() + repeat / 2, took.end());
    return took[static_cast<std::size_t>(repeat) / 2];
  }

 private:
  void choose(int layer, int count) {
    const auto n =
        static_cast<unsigned>(model_.spec().layers[static_cast<std::size_t>(layer)].moe->n_expert);
    experts_.clear();
    while (std::cmp_less(experts_.size(), count)) {
      const auto expert = static_cast<std::int32_t>(random_() % n);
      if (std::find(experts_.begin(), experts_.end(), expert) == experts_.end())
        experts_.push_back(expert);
    }
    pairs_.clear();
    for (const std::int32_t expert : experts_) pairs_.push_back({.expert = expert, .weight = 0.1f});
  }

  const Model& model_;
  ExpertExecutor& host_;
  std::mt19937 random_{1};
  std::vector<float> row_;
  std::vector<double> sums_;
  std::vector<std::int32_t> experts_;
  std::vector<RoutedPair> pairs_;
};

Status run(const char* path, int threads, int repeat) {
  TESSERA_ASSIGN(const Model model, Model::open(path));
  TESSERA_ASSIGN(const auto host, make_host_executor(model, {.end_layer = model.spec().n_layer(),
                                                             .max_rows = 1,
                                                             .threads = threads}));
  Jobs jobs(model, *host);
  const double mb = static_cast<double>(expert_file_bytes(model, 0)) / 1e6;
  for (const int experts : {8, 8}) TESSERA_TRY(jobs.median_us({experts, 0, false}, 20 * repeat));
  fmt::print("{:>8}{:>8}{:>12}{:>8}{:>12}{:>8}\n", "experts", "gap", "as it comes", "GB/s",
             "foreseen", "gained");
  for (const int experts : {1, 3, 5, 6, 8})
    for (const double gap_us : {20.0, 40.0, 60.0, 200.0}) {
      TESSERA_ASSIGN(const double plain, jobs.median_us({experts, gap_us, false}, repeat));
      TESSERA_ASSIGN(const double foreseen, jobs.median_us({experts, gap_us, true}, repeat));
      fmt::print("{:>8}{:>8.0f}{:>12.1f}{:>8.1f}{:>12.1f}{:>8.1f}\n", experts, gap_us, plain,
                 experts * mb / plain * 1e3, foreseen, plain - foreseen);
    }
  return {};
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} MODEL THREADS [REPEAT]\n", argv[0]);
    return 2;
  }
  const int threads = std::atoi(argv[2]), repeat = argc > 3 ? std::atoi(argv[3]) : 300;
  if (threads < 1 || repeat < 1) {
    fmt::print(stderr, "THREADS and REPEAT must be 1 or more\n");
    return 2;
  }
  const tessera::Status done = tessera::run(argv[1], threads, repeat);
  if (!done) fmt::print(stderr, "error: {}\n", done.error().message);
  return done ? 0 : 1;
}
