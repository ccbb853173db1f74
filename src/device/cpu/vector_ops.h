// Element-wise operations, norms, rotary embedding and routing over f32 rows.
//
// Every function reads and writes plain f32 arrays of any alignment and length n >= 0; `out` may be
// the same array as an input, but may not overlap one partly. Nothing is allocated, nothing is
// shared: any thread may call anything. A result depends on that call's own arguments only, so a
// row comes out the same bit by bit whatever other rows a batch holds. Between instruction sets
// the results differ in the last bits.
//
// exp is within 2 ulp, tanh, sigmoid and softplus within 4, over the whole range: exp(-inf) is 0,
// and no finite or infinite argument gives a NaN. (silu and gelu of -inf are NaN, as in the
// formula.)
//
//   const VectorKernels& ops = vector_kernels(detect_isa());
//   ops.rms_norm(x, weight, 1e-6f, n, out);
#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/isa.h"
#include "model/spec.h"

namespace tessera::cpu {

// One of the rows of a weighted sum.
struct WeightedRow {
  const float* x = nullptr;  // null: there is none, and nothing is added
  float weight = 0;
};

// Sums of weighted rows do not depend on the order of their terms, nor on how the terms are shared
// out among partial sums: every product is rounded, in double, to a multiple of kSumUnit, and
// multiples of it add without rounding up to 2^17. That holds where the products of an element are
// below kSumLimit together; beyond it sums are those of double.
inline constexpr double kSumUnit = 0x1p-36;
inline constexpr double kSumLimit = 0x1p15;

struct VectorKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight; a null weight is all ones.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* out);
  // out = rms_norm(x, weight, eps) * silu(gate): the output norm of a gated delta net.
  void (*gated_rms_norm)(const float* x, const float* weight, const float* gate, float eps,
                         std::int64_t n, float* out);
  // out = x / sqrt(sum(x^2) + eps)
  void (*l2_normalize)(const float* x, float eps, std::int64_t n, float* out);

  void (*add)(const float* a, const float* b, std::int64_t n, float* out);
  void (*multiply)(const float* a, const float* b, std::int64_t n, float* out);
  void (*scale)(const float* x, float factor, std::int64_t n, float* out);

  // out = the sum of weight * x over `count` rows; sum_rows adds `partial` to it (null: zeros) and
  // rounds to f32, once. partial_sum makes elements [begin, end) of it.
  void (*sum_rows)(const WeightedRow* rows, std::int64_t count, const double* partial,
                   std::int64_t n, float* out);
  void (*partial_sum)(const WeightedRow* rows, std::int64_t count, std::int64_t begin,
                      std::int64_t end, double* out);

  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*gelu_tanh_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*sigmoid_mul)(const float* x, const float* gate, std::int64_t n, float* out);
  void (*softplus_mul)(const float* x, const float* gate, std::int64_t n, float* out);
  // out[head][i] = x[head][i] * softplus(gate[head])
  void (*softplus_mul_heads)(const float* x, const float* gate, std::int64_t heads,
                             std::int64_t head_dim, float* out);

  void (*exp)(const float* x, std::int64_t n, float* out);
  void (*tanh)(const float* x, std::int64_t n, float* out);
  void (*sigmoid)(const float* x, std::int64_t n, float* out);
  void (*softplus)(const float* x, std::int64_t n, float* out);            // ln(1 + e^x)
  void (*softcap)(const float* x, float cap, std::int64_t n, float* out);  // cap * tanh(x / cap)

  // In place. An array of -inf alone becomes zeros. NaN spreads.
  void (*softmax)(float* x, std::int64_t n);
  // Turns the pairs (i, i + n_rot/2) of one head vector, in place: the first n_rot elements change.
  void (*rope)(float* x, std::int64_t n_rot, const float* cos, const float* sin);
  float (*dot)(const float* a, const float* b, std::int64_t n);
  float (*max)(const float* x, std::int64_t n);  // NaN is skipped; -inf where nothing is left
};

const VectorKernels& vector_kernels(Isa isa);

// cos and sin (inv_freq.size() values each) of one position, times `magnitude`. The angle is the
// f32 product of position and inv_freq, as the published PyTorch models compute it, so that far
// positions agree with them; cos and sin of that angle are exact to f32 rounding.
void fill_rope_row(std::span<const float> inv_freq, float magnitude, std::int64_t position,
                   float* cos, float* sin);

// Chooses spec.n_used experts of one row from its router logits and gives them their weights, in
// falling order of their selection score. Order is total: NaN counts as -inf, ties go to the lower
// id. `bias` (selection only) and `expert_scale` are [n_expert] or null. `scratch` holds
// 2 * n_expert floats; ids and weights hold n_used.
void route_row(const VectorKernels& ops, const MoeSpec& spec, const float* logits,
               const float* bias, const float* expert_scale, float* scratch, std::int32_t* ids,
               float* weights);

}  // namespace tessera::cpu
