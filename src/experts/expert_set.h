// ExpertSet: routed experts of some layers of a model on a team of CPU threads, without the layers.
//
//   ExpertSetLayout layout{.first_layer = 0, .experts = homes, .max_rows = 512, .max_pairs = 4096};
//   TESSERA_ASSIGN(auto set, ExpertSet::load(model, layout, {.team = team}, progress));
//   TESSERA_TRY(set->check(job));
//   set->compute(job, sums);                          // [job.n_rows][n_embd], executor.h
//
// The homes say what it holds: `resident` experts are packed into memory at load, `host` ones stay
// in the mapped file and are read there whenever they are used (device/cpu/file_matrix.h), and it
// does not have the others. Both give the same bits, which are those of the CPU device: it is the
// same code (device/cpu/expert_pass.h).
//
// This is what a worker process of the role `experts` runs (the experts of HELLO as residents), and
// what stands behind the host executor (all of them in the file).
//
// Ownership: it owns its packed experts and scratch, allocated at load; the model must outlive it.
// compute() allocates nothing and cannot fail; with experts in the file, ask the model's
// file().check_intact() afterwards. Threads: one at a time. Errors: only loading, and check().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_team.h"
#include "device/cpu/expert_pass.h"
#include "device/cpu/isa.h"
#include "experts/executor.h"
#include "model/model.h"

namespace tessera {

struct ExpertSetLayout {
  int first_layer = 0;
  std::vector<LayerExperts> experts;  // by layer from first_layer on; no homes: none of the layer's
  int max_rows = 0;                   // of a job
  int max_pairs = 0;
  bool f32_weights = false;  // ShardLayout::f32_weights

  int end_layer() const { return first_layer + static_cast<int>(experts.size()); }
};

// Whether such experts can compute the job: ErrorCode::invalid for a layer, row or count out of
// range or pairs whose rows do not rise, not_found for an expert that is not among them.
Status check_expert_job(const ExpertSetLayout& layout, int n_embd, const ExpertJob& job);

struct ExpertSetOptions {
  std::shared_ptr<ThreadTeam> team;  // computes; run() only from the thread that calls compute()
  cpu::Isa isa = cpu::detect_isa();
};

// What it allocates, to the byte.
struct ExpertSetFootprint {
  std::int64_t weights = 0;
  std::int64_t scratch = 0;
};
ExpertSetFootprint expert_set_footprint(const Model& model, const ExpertSetLayout& layout,
                                        int threads);

class ExpertSet {
 public:
  static Result<std::unique_ptr<ExpertSet>> load(const Model& model, const ExpertSetLayout& layout,
                                                 const ExpertSetOptions& options,
                                                 const LoadProgress& progress);

  const ExpertSetLayout& layout() const { return layout_; }
  int n_embd() const { return model_.spec().n_embd; }

  // Takes all of its scratch from the system now, and not with the first large job.
  void touch();

  Status check(const ExpertJob& job) const { return check_expert_job(layout_, n_embd(), job); }
  // A job that passed check(); sums is [n_rows][n_embd]. With the set's team, or a smaller one.
  void compute(const ExpertJob& job, std::span<double> sums) { compute(job, sums, *team_); }
  void compute(const ExpertJob& job, std::span<double> sums, ThreadTeam& team);

  // Brings experts of a layer, no more than max_pairs, into the caches of the members that will
  // compute them, until `enough`. Between jobs.
  void fetch(int layer, std::span<const std::int32_t> experts, ThreadTeam& team,
             const std::function<bool()>& enough);

 private:
  // Carved out of one allocation; R = max_rows, P = max_pairs, E = n_embd, F, X the largest n_ff
  // and n_expert.
  struct Scratch {
    cpu::ExpertBuffers buffers;
    cpu::ActivationRecord* row_records = nullptr;  // [R] x E
    cpu::WeightedRow* terms = nullptr;             // [P] each pair's output and weight
    std::int32_t* row_pairs = nullptr;             // [R + 1] where each row's pairs begin
    std::byte* pack_rooms = nullptr;               // [threads][pack_room]
    std::int64_t pack_room = 0;
  };
  friend ExpertSetFootprint expert_set_footprint(const Model&, const ExpertSetLayout&, int);
  static std::int64_t carve(const Model& model, const ExpertSetLayout& layout, int threads,
                            std::byte* base, Scratch& out);

  ExpertSet(const Model& model, const ExpertSetLayout& layout, const ExpertSetOptions& options);
  cpu::ExpertPass pass_of(int layer) const;
  void add_up(TeamMember& member, int rows, std::span<double> sums) const;

  const Model& model_;
  ExpertSetLayout layout_;
  std::shared_ptr<ThreadTeam> team_;
  const cpu::MatmulKernels& matmul_;
  const cpu::VectorKernels& ops_;
  std::vector<TensorSlice> tensors_;  // the experts' of its layers
  std::vector<cpu::FileExperts> files_;
  cpu::Weights weights_;
  AlignedBuffer memory_;
  Scratch scratch_;
  std::vector<int> active_;
  std::vector<RoutedPair> fetched_;
  std::vector<cpu::PackRoom> rooms_;
};

}  // namespace tessera
