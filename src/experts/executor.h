// ExpertExecutor: computes routed experts of a layer away from the device that runs the layer: on
// the host's cores (experts/host_executor.h) or in a worker process (worker/). The dispatcher
// (experts/dispatcher.h) drives it:
//
//   const ExpertJob job{.layer = 3, .n_rows = 2, .rows = rows, .pairs = pairs};
//   if (Status taken = executor.submit(job); !taken) return compute_elsewhere(job);
//   device.experts(3, resident_pairs);                       // meanwhile
//   Result<ExpertReport> report = executor.collect(sums);    // [2][n_embd]
//   if (!report) return compute_elsewhere(job);
//
// A job is one layer's ragged list of (row, expert, weight). sums[r] is the sum over the pairs of
// row r of weight * expert(rows[r]); a row without pairs gets zeros, an expert may stand twice in a
// row. What an expert computes is MoeSpec's n_ff-wide gated FFN with the tensors moe_gate, moe_up
// and moe_down, without any norm: rows are normed already. A row's sum has the same bits whatever
// other rows are in the job.
//
// Sums are doubles of which addition loses nothing (WeightedRow in device/cpu/vector_ops.h), so
// that the sums of several executors make the same bits in any order and with any share of the
// pairs. Only a worker with payloads of 16 bits gives rounded ones; who computes in its place
// rounds as it does, so that an answer does not depend on who was first.
//
// Ownership: the spans of a job stay the caller's and must live until the job is collected or
// dropped. Threads: one thread drives an executor; an implementation that serves several shards
// over one connection gives each its own executor and locks behind them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "device/device.h"

namespace tessera {

struct ExpertOfLayer {
  int layer = 0;
  int expert = 0;
};

struct ExpertJob {
  int layer = 0;
  int n_rows = 0;
  std::span<const float> rows;        // [n_rows][n_embd], what the experts read
  std::span<const RoutedPair> pairs;  // row: index into rows; slot: not used; rows rising
  double host_us = 0;                 // what the host would take for it; 0: not known
};

// What one executor takes at a time. Read before each layer, since a worker that came back may have
// agreed to less.
struct ExpertLimits {
  int max_rows = 0;   // of one job
  int max_pairs = 0;  // of one job
  int jobs = 1;       // submitted and not collected
};

struct ExpertReport {
  std::int64_t compute_us = 0;  // of the job alone, without queues and transport
  std::int64_t bytes_sent = 0;  // over the transport; 0 within the process
  std::int64_t bytes_received = 0;
};

class ExpertExecutor {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~ExpertExecutor() = default;
  virtual std::string name() const = 0;  // "host", "worker:0"
  virtual ExpertLimits limits() const = 0;
  // Why it takes no job now, if so: "away (backoff): signal 9 (Killed)". Any thread.
  virtual std::optional<std::string> away() const { return std::nullopt; }
  // Why what it has takes longer than it should, where that is waited for: "not answering: a job is
  // 3.1 s old". Any thread.
  virtual std::optional<std::string> unanswered() const { return std::nullopt; }

  // Whether it has, of this layer, the experts that the table gives it; a worker may lack room.
  // Read before each layer.
  virtual bool has(int layer) const {
    (void)layer;
    return true;
  }

  // What becomes of rows and sums on the way there and back. Twice is as once.
  virtual bool rounds() const { return false; }
  virtual void round_rows(std::span<float> rows) { (void)rows; }
  virtual void round_sums(std::span<double> sums) { (void)sums; }

  // Takes a job or says why not, without waiting: `exhausted` where it has as many as it can hold
  // (collect one and try again), `unavailable` where it is down, `invalid` for a job over its
  // limits or with an expert that it does not hold.
  virtual Status submit(const ExpertJob& job) = 0;

  // By when the oldest job should be there; what is not there then may be computed elsewhere too.
  virtual Clock::time_point expected() const { return Clock::time_point::max(); }
  // Waits until then for the oldest job, and says whether collect() would not wait any more.
  virtual bool wait(Clock::time_point until) {
    (void)until;
    return true;
  }

  // Waits for the oldest job, at most for the executor's own deadline, which is for a worker a
  // multiple of the host's time. An error concerns that job alone: its pairs must be computed
  // elsewhere, and `sums` may hold anything. `cancelled` where the deadline passed, `unavailable`
  // where the executor broke, `invalid` where its sums are not finite.
  virtual Result<ExpertReport> collect(std::span<double> sums) = 0;

  // What the next job will probably want, of a layer, each expert once: who has nothing else to do
  // until then brings them near. Whether it will; not while a job, or such a call, is under way. No
  // job waits for it.
  virtual bool foresee(int layer, std::span<const std::int32_t> experts) {
    (void)layer;
    (void)experts;
    return false;
  }

  // Gives up the jobs that were not collected, or the oldest; their spans are free when it returns.
  virtual void drop() = 0;
  virtual void give_up() { drop(); }
};

}  // namespace tessera
