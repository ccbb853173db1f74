// ExpertHolder: who computes the jobs of a worker of experts: a team of CPU threads (ExpertSet) or
// a GPU (device/gpu/gpu_experts.h).
//
//   TESSERA_ASSIGN(auto holder, load_experts(model, layout, {.kind = DeviceKind::cuda, ...}));
//   TESSERA_TRY(holder->check(job));
//   TESSERA_TRY(holder->compute(job, sums));          // executor.h
//
// A CPU's sums have the bits of the host's, wherever a pair is computed. A GPU's are its own: f32,
// rounded as on a GPU with layers, so who computes an expert shows in the last bits.
//
// Ownership: it owns what it holds; the model must outlive it. Threads: one at a time. Errors: of
// loading and check(); compute() fails only where a GPU is lost, and it then is for good.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device_kind.h"
#include "experts/expert_set.h"

namespace tessera {

class ExpertHolder {
 public:
  virtual ~ExpertHolder() = default;
  virtual const ExpertSetLayout& layout() const = 0;
  virtual Status check(const ExpertJob& job) const = 0;
  virtual Status compute(const ExpertJob& job, std::span<double> sums) = 0;
};

struct ExpertHolderOptions {
  DeviceKind kind = DeviceKind::cpu;
  int number = 0;         // of a GPU
  int threads = 1;        // that compute, or that load a GPU
  std::vector<int> cpus;  // where they run; empty: not bound
  cpu::Isa isa = cpu::detect_isa();
  std::string gpu_plugins{};  // Placement::gpu_plugins
  double gpu_wait_s = 60.0;
  bool gpu_chained = true;
};

Result<std::unique_ptr<ExpertHolder>> load_experts(const Model& model,
                                                   const ExpertSetLayout& layout,
                                                   const ExpertHolderOptions& options);

}  // namespace tessera
