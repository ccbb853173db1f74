// Dispatcher: the routed experts of a shard's layers, wherever they are computed.
//
//   device.mixer(l);
//   device.route(l);
//   if (Status done = dispatcher.compute(device, l); !done) return done;   // experts and dense
//   device.finish_ffn(l);
//
// Each pair of the routing goes to exactly one executor by the ExpertTable, but for the host's
// pairs whose experts the device can fetch: of a layer of many rows it gets these where that is
// cheaper, and of few rows it keeps those that it was told to (experts/stream_choice.h). Jobs away
// from the device are submitted first; the resident experts and the dense branch run meanwhile;
// then the sums are collected and added. Adding them loses nothing (experts/executor.h), so on a
// CPU device a row's bits depend neither on where its experts live nor on anything else in the
// batch.
//
// A worker job that is refused or fails is computed by the host in the same step and added in the
// worker's place. One that is later than it should be both compute, and who is first is used: the
// host looks for the worker's sums between a few experts and the next. Of a worker that costs more
// than the host (experts/bypass.h) the host gets the pairs before anything is sent. Not so with
// ExpertOptions::required: then compute() fails with ErrorCode::unavailable. The step's sequences
// are spoilt, everything else is as before. It also fails with ErrorCode::io where the host cannot
// read the model's file.
//
// Ownership: it owns its executors; all buffers are allocated by its constructor, a step allocates
// nothing. Threads: that of the device.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experts/bypass.h"
#include "experts/executor.h"
#include "experts/expert_cache.h"
#include "experts/expert_metrics.h"
#include "experts/expert_reads.h"
#include "experts/expert_table.h"
#include "experts/options.h"
#include "experts/pair_pace.h"

namespace tessera {

struct DispatcherParts {
  ExpertOptions options;
  std::unique_ptr<ExpertExecutor> host;
  // By the number of the worker in the table; null for one that this process does not have.
  std::vector<std::unique_ptr<ExpertExecutor>> workers;
  ExpertMetrics* metrics = nullptr;  // may be null
  // For the metrics alone: of one expert, by the shard's layers; of the host, then the workers.
  // Either may be shorter.
  std::vector<std::int64_t> expert_bytes = {};
  std::vector<PlacedCost> costs = {};
};

class Dispatcher {
 public:
  Dispatcher(const ModelSpec& spec, const ShardLayout& layout, DispatcherParts parts);
  ~Dispatcher();

  // experts() and dense() of a layer, after its route().
  Status compute(Device& device, int layer);

  // Takes the time of the host for a pair, where there are workers: by that it is known from the
  // first job on when one of theirs is late. Returns the expert of theirs that it was taken with,
  // whose pages nobody else may need. ErrorCode::io where the model's file cannot be read.
  Result<std::optional<ExpertOfLayer>> measure_host();
  // Settles what depends on the device: whether it foresees, and, where it can fetch experts, the
  // host's pace. ErrorCode::io likewise.
  Status prepare(Device& device);
  // After an answer: the host reads ahead what the device foresees.
  void foresee(Device& device);

  // Before a step: begins to move an expert, if one is worth it, or uses the one that has come. One
  // that does not come stays away, and no other moves. Errors: the device's fault.
  Status between_steps(Device& device);

  const ExpertTable& table() const { return table_; }

  // A line for each executor that takes no job now, "worker:0 is away (...)", or is not given some
  // of them: "worker:0 is passed over for jobs of up to 16 pairs: ...". Any thread.
  std::vector<std::string> away() const;
  // The same of each that should have answered.
  std::vector<std::string> unanswered() const;

  // Bytes that the constructor allocates for rows and sums.
  static std::int64_t bytes(const ModelSpec& spec, const ShardLayout& layout);

 private:
  using Clock = std::chrono::steady_clock;
  struct Group;
  struct Job;

  Status measure_streams(Device& device);
  Result<HostPace> host_pace(int layer, std::span<const std::uint8_t> experts,
                             std::chrono::microseconds ahead);
  void count_foreseen(int layer);
  void divide_reads(Device& device, double link_us) const;
  void choose_stream(Device& device, int layer, int rows);
  void fetch_streamed(Device& device, int layer);
  void pass_over(int layer);
  void judge(Group& group, double spent_us);
  void gather(Group& group, std::span<const RoutedPair> pairs, std::span<const float> rows);
  void cut_jobs(Group& group) const;
  void submit_some(Group& group, int layer);
  Status finish(Group& group, int layer);
  void wait_for_credit(Group& group, Job& job, int layer);
  Status collect(Group& group, Job& job, int layer);
  // Before the host computes a worker's job: to what the worker would have been sent.
  void round_rows(Group& group, const Job& job);
  Status host_computes(Group& group, const Job& job, int layer);
  Status compute_on_host(Group& group, Job& job, int layer, const Error& reason);
  void tell_failing(Group& group, std::string_view reason);
  bool is_late(const Group& group) const;
  bool race(Group& group, const Job& job, int layer, Clock::time_point waited_since);
  std::optional<ExpertReport> compute_beside(Group& group, const Job& job, int layer);
  ExpertJob expert_job(const Group& group, const Job& job, int layer) const;
  std::span<double> sums_of(Group& group, const Job& job) const;
  ExpertMetrics::Executor* counts_of(const Group& group) const;  // null: nothing is counted
  void count(Group& by, const ExpertJob& job, const Result<ExpertReport>& report,
             Clock::time_point start);
  void count_cost(const Group& by, const ExpertJob& job, double taken_us);
  void drop_all();
  void observe(int layer, std::span<const RoutedPair> pairs);

  int n_embd_;
  int most_used_;  // experts of a row
  ExpertTable table_;
  ExpertOptions options_;
  ExpertMetrics* metrics_;
  ExpertReads reads_;
  ExpertCache cache_;
  std::optional<ExpertMove> moving_;  // the device copies it
  PairPace host_pace_;
  Bypass bypass_;
  PairSplit split_;
  std::vector<bool> streamed_layers_;  // by layer of the shard, as planned
  StreamChoice stream_choice_;
  StreamedExperts streamed_before_;  // by the device, as counted
  bool foresees_ = false;
  int foreseen_layer_ = -1;
  bool read_ahead_ = false;                     // what the layer under way asks of the host
  std::vector<std::int32_t> foreseen_;          // experts that the host was told of
  std::vector<std::unique_ptr<Group>> groups_;  // host, worker 0, worker 1, ...
};

}  // namespace tessera
