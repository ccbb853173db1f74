#include "experts/measure_host.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/evict.h"
#include "base/shortest.h"
#include "experts/host_executor.h"

namespace tessera {
namespace {

constexpr int kTries = 3;
constexpr int kWakingCalls = 10;
constexpr int kLeastCalls = 50;
constexpr double kCallsTime_s = 0.020;
// Of either in a round, on a machine that is busy; rounds for two of each to be alike, and until
// jobs take longer than calls.
constexpr double kMostTime_s = 0.200;
constexpr int kSteadyRounds = 3, kMostRounds = 10;

int first_with_experts(const ModelSpec& spec) {
  const auto found = std::find_if(spec.layers.begin(), spec.layers.end(),
                                  [](const LayerSpec& layer) { return layer.moe.has_value(); });
  return static_cast<int>(found - spec.layers.begin());
}

// Of one layer, the experts that a row uses.
class Rig {
 public:
  Rig(const Model& model, int layer, ExpertExecutor& host, const std::function<double()>& clock)
      : model_(model), layer_(layer), host_(host), clock_(clock) {
    const auto n = static_cast<std::size_t>(model.spec().n_embd);
    for (std::size_t i = 0; i < n; ++i) row_.push_back(static_cast<float>(i % 7) - 3.0f);
    sums_.resize(n);
    const MoeSpec& moe = *model.spec().layers[static_cast<std::size_t>(layer)].moe;
    for (int e = 0; e < std::min(moe.n_used, moe.n_expert); ++e)
      pairs_.push_back({.expert = e, .weight = 1.0f});
  }

  // Other work may lengthen every call of a round and not every job of it. A job takes no less than
  // a call does: as long as it seems to, more of both are measured, and the shortest count.
  Result<HostExpertTimes> measure() {
    TESSERA_TRY(run(pairs_));  // finds the pages cold
    Shortest job, call;
    const auto settled = [&](int round) {
      const bool steady = job.steady() && call.steady();
      return call.seconds() < job.seconds() && (steady || round >= kSteadyRounds);
    };
    for (int round = 0; round < kMostRounds && !settled(round); ++round) {
      TESSERA_TRY(time_jobs(job));
      TESSERA_TRY(time_calls(call));
    }
    return HostExpertTimes{.call_s = call.seconds(),
                           .bytes_per_s = bytes() / (job.seconds() - call.seconds())};
  }

 private:
  // As often as it takes for two jobs to be alike.
  Status time_jobs(Shortest& job) {
    const double end = clock_() + kMostTime_s;
    for (int i = 0; i < kTries || (!job.steady() && clock_() < end); ++i) {
      each_part([](const std::byte* data, std::int64_t bytes) {
        evict(data, static_cast<std::size_t>(bytes));
      });
      for (int call = 0; call < kWakingCalls; ++call) TESSERA_TRY(run({}));
      TESSERA_ASSIGN(const double took, run(pairs_));
      job.add(took);
    }
    return {};
  }

  // Of jobs without pairs, one after the other as while a model runs: threads that just woke may
  // share a core for some milliseconds.
  Status time_calls(Shortest& call) {
    const double begin = clock_();
    const auto spent = [&] { return clock_() - begin; };
    for (int i = 0;
         i < kLeastCalls || spent() < kCallsTime_s || (!call.steady() && spent() < kMostTime_s);
         ++i) {
      TESSERA_ASSIGN(const double took, run({}));
      call.add(took);
    }
    return {};
  }

  double bytes() const {
    std::int64_t sum = 0;
    each_part([&](const std::byte*, std::int64_t bytes) { sum += bytes; });
    return static_cast<double>(sum);
  }

  Result<double> run(std::span<const RoutedPair> pairs) {
    const double begin = clock_();
    TESSERA_TRY(host_.submit({.layer = layer_, .n_rows = 1, .rows = row_, .pairs = pairs}));
    TESSERA_ASSIGN(const ExpertReport report, host_.collect(sums_));
    static_cast<void>(report);
    return clock_() - begin;
  }

  template <typename F>
  void each_part(F f) const {
    for (const TensorRole role : {TensorRole::moe_gate, TensorRole::moe_up, TensorRole::moe_down})
      if (const TensorSlice* slice = model_.find(role, layer_))
        for (const RoutedPair& pair : pairs_)
          f(slice->data + pair.expert * slice->matrix_stride,
            (slice->rows - 1) * slice->row_stride + row_bytes(slice->type, slice->cols));
  }

  const Model& model_;
  int layer_;
  ExpertExecutor& host_;
  const std::function<double()>& clock_;
  std::vector<float> row_;
  std::vector<double> sums_;
  std::vector<RoutedPair> pairs_;
};

Result<std::unique_ptr<ExpertExecutor>> open_host(const Model& model, int layer,
                                                  const HostMeasureOptions& options) {
  HostExecutorOptions host{.first_layer = layer,
                           .end_layer = layer + 1,
                           .max_rows = 1,
                           .f32_weights = options.f32_weights,
                           .threads = options.threads,
                           .isa = options.isa};
  try {
    if (!options.beside)
      host.team = std::make_shared<ThreadTeam>(
          ThreadTeamOptions{.threads = options.threads, .cpus = options.cpus});
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "cannot start {} threads for experts: {}",
                       options.threads, error.what());
  }
  return make_host_executor(model, host);
}

}  // namespace

bool usable(const HostExpertTimes& times) {
  constexpr double kLongest = 10.0, kSlowest = 1e3, kFastest = 1e13;
  return times.call_s > 0.0 && times.call_s < kLongest && times.bytes_per_s > kSlowest &&
         times.bytes_per_s < kFastest;
}

Result<HostExpertTimes> measure_host_experts(const Model& model, int layer, ExpertExecutor& host,
                                             const std::function<double()>& clock) {
  TESSERA_ASSIGN(const HostExpertTimes times, Rig(model, layer, host, clock).measure());
  if (!usable(times))
    return Error::make(
        ErrorCode::internal,
        "a job without experts took {:.3g} s, experts {:.3g} bytes/s: is the machine "
        "busy?",
        times.call_s, times.bytes_per_s);
  return times;
}

Result<HostExpertTimes> measure_host_experts(const Model& model,
                                             const HostMeasureOptions& options) {
  const int layer = first_with_experts(model.spec());
  if (layer == model.spec().n_layer())
    return Error::make(ErrorCode::unsupported, "the model has no routed experts");
  TESSERA_ASSIGN(const auto host, open_host(model, layer, options));
  return measure_host_experts(model, layer, *host, [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  });
}

}  // namespace tessera
