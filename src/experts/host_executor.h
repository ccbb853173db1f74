// HostExecutor: routed experts on this process's processor cores, straight from the mapped file.
//
//   TESSERA_ASSIGN(auto host, make_host_executor(model, {.first_layer = 0, .end_layer = 40,
//                                                        .max_rows = 512, .threads = 4}));
//
// It can compute every expert of its layers, so it is also where the jobs go that a worker fails.
// With a team of its own it computes on a thread of its own, beside the device, and jobs of few
// pairs with all of its threads or with half of them, whichever turns out to be faster. Between two
// jobs it brings foreseen experts near: each thread what it will compute of them (expert_pass.h).
// With the team of a CPU device (`team`) it computes inside collect(), in the thread that drives
// that device: the cores are the same ones, and two teams would only take them from each other.
#pragma once

#include <memory>
#include <vector>

#include "device/cpu/isa.h"
#include "experts/executor.h"
#include "experts/expert_set.h"

namespace tessera {

struct HostExecutorOptions {
  int first_layer = 0;
  int end_layer = 0;
  int max_rows = 0;          // of a job
  bool f32_weights = false;  // ShardLayout::f32_weights
  std::shared_ptr<ThreadTeam> team;
  int threads = 1;        // without a team
  std::vector<int> cpus;  // where they run; empty: not bound
  cpu::Isa isa = cpu::detect_isa();
};

// Rows of a job for a shard's host. A longer step goes as several, whose buffers are smaller.
int host_job_rows(const ShardLayout& layout);

Result<std::unique_ptr<ExpertExecutor>> make_host_executor(const Model& model,
                                                           const HostExecutorOptions& options);

// Bytes that it allocates with a team of so many threads that is not its own; 0: with its own.
std::int64_t host_executor_bytes(const Model& model, const HostExecutorOptions& options,
                                 int team_threads);

}  // namespace tessera
