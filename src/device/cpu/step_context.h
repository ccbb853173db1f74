// StepContext: what the blocks of the CPU device share. Each block is a free function over it, in a
// file of its own: attention_block.cc, delta_block.cc, ffn_block.cc.
#pragma once

#include <span>
#include <vector>

#include "base/thread_team.h"
#include "device/cpu/attention.h"
#include "device/cpu/file_matrix.h"
#include "device/cpu/gated_delta.h"
#include "device/cpu/matmul.h"
#include "device/cpu/scratch.h"
#include "device/cpu/state_memory.h"
#include "device/cpu/vector_ops.h"
#include "device/cpu/weights.h"

namespace tessera::cpu {

struct StepContext {
  const ModelSpec& spec;
  ThreadTeam& team;
  const MatmulKernels& matmul;
  const VectorKernels& ops;
  const AttentionKernels& attention;
  const DeltaKernels& delta;
  const Weights& weights;
  StateMemory& state;
  const Scratch& scratch;
  const RopeTables& ropes;
  std::span<PackRoom> rooms;  // by member of the team, for matrices in the file
  bool chunked_delta = false;

  // The batch of this step.
  BatchView batch;
  int max_rows = 0;
  int max_logit_rows = 0;
  std::vector<std::int32_t> row_position;  // by row
  std::vector<std::int32_t> row_sequence;  // by row: index into batch.sequences

  // Work lists, kept so that a step allocates nothing once they have grown.
  struct AttentionWork {
    AttentionTask task;
    int span = -1;  // -1: the whole task
    float* partial = nullptr;
  };
  std::vector<AttentionWork> attention_work;
  std::vector<int> active_experts;
  int n_used = 0;          // experts a row of the last routed layer
  int pairs_done = 0;      // pairs of this layer already given to experts()
  bool sums_came = false;  // this layer's, of pairs computed elsewhere: scratch.sums_away

  int rows() const { return batch.rows(); }
  int n_embd() const { return spec.n_embd; }
  const LayerSpec& layer(int l) const { return spec.layers[static_cast<std::size_t>(l)]; }
  const SequenceRows& sequence_of(int row) const {
    return batch.sequences[static_cast<std::size_t>(row_sequence[static_cast<std::size_t>(row)])];
  }
  std::byte* thread_bytes(const TeamMember& member) const {
    return scratch.thread_bytes + member.index() * scratch.thread_stride;
  }
  float* hidden_row(int row) const { return scratch.hidden + std::int64_t{row} * spec.n_embd; }
  float* branch_row(int row) const { return scratch.branch + std::int64_t{row} * spec.n_embd; }
};

// One matrix product of a phase.
struct Product {
  const WeightMatrix* w = nullptr;
  Activations x;
  std::span<const std::int32_t> row_ids;  // empty: the first n_rows rows of x
  int n_rows = 0;
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
};

// Computes all the products with the whole team; ends with a barrier.
void multiply(const StepContext& context, TeamMember& member, std::span<const Product> products);

// Activations over `rows` of `cols` floats each, with their records.
inline Activations activations(const float* rows, std::int64_t n_rows, std::int64_t cols,
                               ActivationRecord* records) {
  return {.rows = rows, .stride = cols, .n_rows = n_rows, .cols = cols, .records = records};
}

// The records of rows [begin, end), if products with `w` read records.
inline void quantize_for(const StepContext& context, const PackedMatrix& w, const Activations& x,
                         int begin, int end) {
  if (uses_records(w.type())) quantize_rows(context.matmul, x, begin, end);
}

// normed = rms(hidden) * weight of every row, with records if any matrix of the layer reads them.
// Ends with a barrier.
void norm_rows(const StepContext& context, TeamMember& member, const LayerWeights& weights,
               TensorRole norm);

// The residual stream plus the mixer's output, with its post norm. Rows [begin, end).
void add_branch(const StepContext& context, const LayerWeights& weights, int begin, int end);

void attention_block(StepContext& context, int layer);
void delta_block(StepContext& context, int layer);
void route_block(StepContext& context, int layer);
void experts_block(StepContext& context, int layer, std::span<const RoutedPair> pairs);
std::span<const float> expert_rows(const StepContext& context, int layer);
void add_sums_block(StepContext& context, std::span<const std::int32_t> rows,
                    std::span<const double> sums);
void dense_block(StepContext& context, int layer);
void finish_ffn_block(StepContext& context, int layer);
void head_block(StepContext& context);

}  // namespace tessera::cpu
