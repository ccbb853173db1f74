// Gated delta net: the causal convolution, the gates and the delta-rule recurrence.
//
// One value head, token by token, with S of dim_k x dim_v (q and k are l2-normalised by the
// caller):
//
//   S <- e^g S;  d = beta (v - S' k);  S <- S + k d';  o = q_scale S' q
//
// State of one sequence and layer, all f32 and zero before the first token:
//   history   [conv_width - 1][channels], the last inputs of the convolution, oldest first
//   S         per value head, in panels of 16 columns: [dim_v / 16][dim_k][16]
//
// recurrent: token by token; the result is bitwise independent of how rows are cut into calls.
// chunked:   the same mathematics over blocks of up to 64 rows as small matrix products (source:
//            the WY form of the gated delta rule). Rounds differently from `recurrent` and depends
//            on where the rows are cut, so it serves only where that is allowed.
//
// dim_k and dim_v are multiples of 16. Calls for different heads or sequences may run at the same
// time. Nothing is allocated.
//
//   kernels.conv_silu(conv);  kernels.gates(...);  l2-normalise q and k;
//   for each value head: kernels.recurrent(task);
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "device/cpu/isa.h"
#include "model/spec.h"

namespace tessera::cpu {

inline constexpr int kDeltaPanel = 16;
inline constexpr int kDeltaChunk = 64;
inline constexpr int kMaxConvWidth = 16;

// Depthwise causal convolution with SiLU over the channels [first_channel, end_channel).
struct ConvTask {
  int width = 0;  // 1 .. kMaxConvWidth
  int rows = 0;
  int channels = 0;  // row stride of taps and history
  int first_channel = 0;
  int end_channel = 0;
  const float* taps = nullptr;  // [width][channels] (transpose_taps); the last row meets the newest
  const float* x = nullptr;     // rows of `channels` values
  std::int64_t x_stride = 0;
  float* history = nullptr;  // [width - 1][channels], updated
  float* out = nullptr;      // may not overlap x
  std::int64_t out_stride = 0;
};

// One value head of one sequence over consecutive rows.
struct DeltaTask {
  int dim_k = 0;
  int dim_v = 0;
  int rows = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_stride = 0;  // floats from row to row
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
  const float* g = nullptr;  // log decay, <= 0
  const float* beta = nullptr;
  std::int64_t gate_stride = 0;  // of g and beta
  float q_scale = 1.0f;          // 1 / sqrt(dim_k)
  float* state = nullptr;        // dim_k * dim_v, panels as above
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

struct DeltaKernels {
  void (*conv_silu)(const ConvTask& task);
  // g = a * softplus(alpha + dt_bias), beta = sigmoid(beta_logits); n value heads of one row.
  void (*gates)(const float* alpha, const float* dt_bias, const float* a, const float* beta_logits,
                std::int64_t n, float* g, float* beta);
  void (*recurrent)(const DeltaTask& task);
  void (*chunked)(const DeltaTask& task, float* scratch);  // delta_chunk_scratch_floats
};

// What the kernels can compute: conv_width up to kMaxConvWidth, head dimensions multiples of 16.
// One line for a person otherwise.
Status validate(const GatedDeltaSpec& spec);

const DeltaKernels& delta_kernels(Isa isa);

std::size_t delta_chunk_scratch_floats(int dim_k, int dim_v);

// The file's [channels][width] taps as [width][channels].
struct TapsShape {
  std::int64_t channels = 0;
  std::int64_t width = 0;
};
void transpose_taps(const float* taps, const TapsShape& shape, float* out);

}  // namespace tessera::cpu
