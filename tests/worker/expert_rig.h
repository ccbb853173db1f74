// Workers of a runner's experts, for tests: processes of their own, spawned or found by TCP.
//
//   ExpertRig rig;
//   ModelRunner runner(model, rig.runner(model, 30.0, 1));    // percent resident, workers
#pragma once

#include <optional>
#include <sstream>

#include "base/metrics.h"
#include "tests/model_runner.h"
#include "tests/worker/fault.h"
#include "tests/worker/listening_process.h"
#include "tests/worker/process_counts.h"
#include "worker/remote_experts.h"

namespace tessera::testing {

struct ExpertRig {
  MetricsRegistry registry;
  ExpertMetrics metrics{registry};
  // The test models' experts take the host less than any call: no worker would be used for long,
  // and on a busy machine the host would win races with good ones.
  ExpertOptions options{.patience = std::chrono::hours(1), .grace = std::chrono::hours(1)};
  Link link = Link::shared;
  std::string address;  // of a worker that is there already; none: they are started
  std::string binary = TESSERA_PROGRAM;
  std::string mode;                          // of fake_worker
  std::vector<std::string> more_words = {};  // of a worker's command line
  std::chrono::milliseconds backoff{1};
  std::chrono::milliseconds job_limit{2000 * kTimeScale};
  bool may_fail = false;  // wait_ready(), which `failure` then says
  std::optional<Error> failure;
  std::vector<std::unique_ptr<ListeningProcess>> listening;
  std::vector<std::unique_ptr<worker::ExpertConnection>> connections;

  // It computes all that is its, however long the machine stands still: nobody else may.
  void waits_for_its_worker() {
    options.required = true;
    job_limit = kNever;
  }
  // A worker that goes bad like this on request (fault.h).
  void turns(const std::string& how) {
    binary = FAKE_WORKER;
    mode = "turns_" + how;
  }
  std::vector<std::string> words(const std::string& path) const {
    std::vector<std::string> made = {"worker"};
    if (!mode.empty()) made.push_back(mode);
    for (const char* word :
         {path.c_str(), "--config", "/dev/null", "--threads", "1", "--log-level", "warn"})
      made.push_back(word);
    made.insert(made.end(), more_words.begin(), more_words.end());
    return made;
  }
  worker::WorkerSite site(int id, const std::string& path) const {
    worker::WorkerSite made{.name = fmt::format("worker:{}", id),
                            .role = worker::Role::experts,
                            .transport = transport_of(link)};
    if (!address.empty()) {
      made.address = *worker::Address::parse(address);
    } else if (link == Link::tcp) {
      made.address = *worker::Address::parse(listening[static_cast<std::size_t>(id)]->address());
      made.token = kToken;
    } else {
      made.spawn =
          worker::SpawnOptions{.binary = binary, .arguments = words(path), .log_prefix = made.name};
    }
    made.job_limit = job_limit;
    made.lifecycle.heartbeat = std::chrono::milliseconds(10);
    made.lifecycle.suspect_after = 50;
    made.lifecycle.dead_after = kNever;
    made.lifecycle.backoff_first = backoff;
    made.lifecycle.backoff_most = 20 * backoff;
    return made;
  }

  // Starts those that listen, which die with the calling thread.
  RunnerOptions runner(const std::string& path, double resident, int workers) {
    for (int id = 0; link == Link::tcp && id < workers; ++id)
      listening.push_back(std::make_unique<ListeningProcess>(binary, words(path)));
    RunnerOptions made{.threads = 1, .expert_resident = resident, .expert_workers = workers};
    made.device.experts.options = options;
    made.device.experts.metrics = &metrics;
    made.device.experts.workers = [this, path, workers](const ShardLayout& layout) {
      const Result<Model> model = Model::open(path);
      EXPECT_TRUE(model);
      std::vector<LayerExperts> experts(model->spec().layers.size());
      std::copy(layout.experts.begin(), layout.experts.end(), experts.begin() + layout.first_layer);
      std::vector<std::unique_ptr<ExpertExecutor>> executors;
      for (int id = 0; id < workers; ++id) {
        auto made = worker::ExpertConnection::create(site(id, path),
                                                     {.id = id,
                                                      .experts = experts,
                                                      .max_rows = layout.max_rows,
                                                      .payload = options.payload,
                                                      .required = options.required},
                                                     *model, registry);
        EXPECT_TRUE(made) << made.error().message;
        const Status ready = (*made)->wait_ready();
        EXPECT_TRUE(may_fail || ready) << ready.error().message;
        if (!ready) failure = ready.error();
        executors.push_back((*made)->executor());
        connections.push_back(*std::move(made));
      }
      return executors;
    };
    return made;
  }
  int pid() const {
    if (!listening.empty()) return listening.front()->pid();
    return first_child();
  }
  // Does for a worker at an address what nobody else does.
  void revive(Fault fault) {
    if (listening.empty()) return;
    if (fault == Fault::stop) send_signal(pid(), SIGCONT);
    if (fault != Fault::kill && fault != Fault::exit) return;
    listening.front()->end();
    listening.front()->start();
  }
  bool healthy() const { return connections[0]->state() == worker::WorkerState::healthy; }
  bool usable() const { return healthy() && !connections[0]->away(); }
  std::uint64_t deaths(const std::string& reason) {
    return registry
        .counter("tessera_worker_deaths_total", "", {{"worker", "worker:0"}, {"reason", reason}})
        .value();
  }
  std::uint64_t races_won() const { return metrics.races_host.value(); }  // by the host
  // For any reason, where none is named.
  double fallbacks(const std::string& reason = "") const {
    double sum = 0;
    std::istringstream page(registry.render());
    for (std::string line; std::getline(page, line);)
      if (line.starts_with("tessera_moe_fallback_total{") &&
          line.find("reason=\"" + reason) != std::string::npos)
        sum += std::stod(line.substr(line.rfind(' ')));
    return sum;
  }
};

}  // namespace tessera::testing
