// ExpertConnection: a supervised worker process of role experts, and the executors over it.
//
//   TESSERA_ASSIGN(auto worker, ExpertConnection::create(site, wanted, model, metrics));
//   TESSERA_TRY(worker->wait_ready());          // or go on without it
//   parts.workers.push_back(worker->executor());          // one for each dispatcher
//
// A job goes out as COMPUTE_EXPERTS in the payload type and its sums come back in it, with f32 in
// f64. It is expected within a few times what jobs of its size took so far, or would take the host,
// and has a deadline, which is a larger multiple of the same.
// One that is late is given up (the worker is told, its answer dropped) and the worker counts as
// suspect: until its answer came, jobs are refused at once, so that a hung worker costs one
// deadline and not one a layer. The supervisor restarts or reconnects to a lost worker; a request
// never waits for that.
//
// A worker that has no room for all of its experts is asked for those of fewer layers, and has()
// says which (tessera_worker_experts_released).
//
// Where nobody else may compute (`required`) nothing is won by giving a job up early: it has
// WorkerSite::job_limit, and a worker that takes longer is given up.
//
// A worker at an address that has no file of the model is sent it, so the model must outlive the
// connection.
//
// Threads: an executor belongs to one thread, several of them may use one worker at a time. The
// worker must outlive its executors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "experts/executor.h"
#include "experts/options.h"
#include "model/model.h"
#include "worker/job_times.h"
#include "worker/site.h"
#include "worker/wire.h"

namespace tessera::worker {

struct ExpertConnectionOptions {
  int id = 0;                         // the number in ExpertHome::worker
  std::vector<LayerExperts> experts;  // of all layers of the model; the worker holds worker(id)'s
  int max_rows = 0;                   // of a job
  ExpertPayload payload = ExpertPayload::f32;
  bool required = false;  // ExpertOptions::required
  int credits = 8;        // jobs under way, of all executors
};

// What is asked of the worker.
Hello experts_hello(const Model& model, const ExpertConnectionOptions& options);
// The same for any model of this shape and any of its experts.
Hello experts_terms(const ModelSpec& spec, const ExpertConnectionOptions& options);

// What a job's rows are sent as, and its sums.
WireType wire_type(ExpertPayload payload);
WireType sum_type(WireType payload);

class ExpertConnection {
 public:
  static Result<std::unique_ptr<ExpertConnection>> create(const WorkerSite& site,
                                                          const ExpertConnectionOptions& options,
                                                          const Model& model,
                                                          MetricsRegistry& metrics);

  // Until the worker has loaded, or why it cannot.
  Status wait_ready();
  const std::string& name() const { return site_.name; }
  WorkerState state() const { return supervisor_->state(); }
  bool is_ready() const { return supervisor_->session() != nullptr; }
  // Why no job is taken now: "away (backoff): signal 9 (Killed)". Any thread.
  std::optional<std::string> away() const;
  // Of a required one. Any thread.
  std::optional<std::string> unanswered() const {
    return required_ ? supervisor_->unanswered() : std::nullopt;
  }
  std::unique_ptr<ExpertExecutor> executor();
  // Supervisor::hurry().
  void hurry() { supervisor_->hurry(); }
  // Begins to end the worker, for good; any thread. The destructor waits until it has ended.
  void begin_stop() { supervisor_->begin_stop(); }

 private:
  friend class RemoteExperts;
  ExpertConnection(const WorkerSite& site, const Hello& hello,
                   const ExpertConnectionOptions& options, const Model& model,
                   MetricsRegistry& metrics);
  std::chrono::microseconds deadline(std::size_t pairs, double host_us) const;
  bool is_late(const Session& session) const;

  WorkerSite site_;
  Hello hello_;
  WireType payload_;
  bool required_;
  JobTimes times_;

  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace tessera::worker
