// What the eight warps of dense_run.h's kernel do that bring rows: they wait for what other blocks
// make, round it for the products, part by part, and step the delta net (dense_run_delta.cuh) or
// attend (dense_run_attention.cuh).
#pragma once

#include <type_traits>

#include "device/gpu/kernels/dense_run_attention.cuh"
#include "device/gpu/kernels/dense_run_delta.cuh"

namespace tessera::gpu::dense_run {

#ifdef TESSERA_GPU_WGMMA

// One of a part's super-blocks is there.
__device__ __forceinline__ void arrive_part(int part, int lane) {
  __syncwarp();
  if (lane == 0) run::arrive(shared_address(&shared()->parts[part]));
}

// A row of the residual: from other blocks or (passed is null) from memory, and the norm's weights.
struct Residual {
  const Value* passed;
  const float *memory, *norm;
  unsigned number;
  __device__ __forceinline__ Eight load(int super, int lane) const {
    return passed != nullptr ? await_eight(passed, super, lane, number)
                             : load_eight(memory + super * kSuperCols, lane);
  }
};

// A layer's input, the output of the one before under that one's number, and what its mixer leaves.
__device__ __forceinline__ Residual input_of(int layer) {
  return {layer > 0 ? values(kAt.residual) : nullptr, shared()->hidden,
          LayerPlace(layer).layer().norm, number_of(layer - 1)};
}
__device__ __forceinline__ Residual middle_of(int layer) {
  return {values(kAt.middle), nullptr, LayerPlace(layer).layer().ffn_norm, number_of(layer)};
}

struct NoGates {
  __device__ __forceinline__ NoGates(const Layer&, int, int, int) {}
};
// Norms and rounds a row. `kGates`: it is a delta net's input, and is multiplied with alpha's and
// beta's rows, too, which were asked for before it came.
template <bool kGates>
static __device__ __noinline__ void take_residual(int layer, int part) {
  const Residual row = part == kPartIn ? input_of(layer) : middle_of(layer);
  Shared* s = shared();
  const int warp = run::this_warp(), lane = run::this_lane();
  const int supers = s->shape.embd, first = first_part(part, supers);
#pragma unroll 1
  for (int super = warp; super < supers; super += kRowWarps) {
    const Eight weight = load_eight(row.norm + super * kSuperCols, lane);
    [[maybe_unused]] const std::conditional_t<kGates, Gates, NoGates> gates(
        LayerPlace(layer).layer(), supers, super, lane);
    const Eight v = row.load(super, lane);
    const float square = sum_of_groups(squares(v));
    const Eight x = times(v, weight);
    round_super(x, 1.0f, lane, s->rows[kMostHidden + super]);
    if (lane == 0) s->squares[super] = square;
    arrive_part(part + (super < first ? 0 : 1), lane);
    if constexpr (kGates) multiply_gates(gates, x, supers, super, lane);
  }
}

// Records of `n` super-blocks.
__device__ __forceinline__ void take_records(const Record* from, int n, int part, int each,
                                             bool heads, float eps, unsigned number) {
  const int lane = run::this_lane();
#pragma unroll 1
  for (int super = run::this_warp(); super < n; super += kRowWarps) {
    const Record v = await_record(from + super * kWarp + lane, number);
    __syncwarp();
    run::put_records(v, lane, heads, eps, offset_of(shared()->rows[super]));
    arrive_part(part + super / each, lane);
  }
}
static __device__ __noinline__ void take_heads(int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const int n = shared()->shape.mixed;
  take_records(records(kAt.heads), n, kPartOut, kOutPart, l.attends == 0, l.head_eps,
               number_of(layer));
}
// The FFN's columns: groups, then those that are passed as they are.
static __device__ __noinline__ void take_hidden(int layer) {
  const Shape& of = shared()->shape;
  const int rounded = of.up_rounds * 2 * kTileRows * kBlocks / kSuperCols;
  const int lane = run::this_lane();
  take_records(records(kAt.hidden), rounded, kPartDown, kDownPart, false, 0.0f, number_of(layer));
#pragma unroll 1
  for (int super = rounded + run::this_warp(); super < of.hidden; super += kRowWarps) {
    const Eight v = await_eight(values(kAt.left), super - rounded, lane, number_of(layer));
    round_super(v, 1.0f, lane, shared()->rows[super]);
    arrive_part(kPartDown + super / kDownPart, lane);
  }
}

// --- A layer ---

// A part of the norms' weights a block: all read them.
__device__ __forceinline__ void prefetch_norms(const Layer& l, int thread) {
  const int bytes = shared()->shape.embd * kSuperCols * static_cast<int>(sizeof(float));
  const int line = thread * kBlocks + static_cast<int>(blockIdx.x);
  prefetch_lines(l.norm, bytes, line);
  prefetch_lines(l.ffn_norm, bytes, line);
}
static __device__ __noinline__ void mix(int layer) {
  const Layer& l = LayerPlace(layer).layer();
  if (l.attends != 0) {
    attend_and_combine(layer);
  } else if (steps_head(l)) {
    step_delta(layer);
  }
}
// The number alone is live across calls: what else is, they would have to save.
static __device__ __noinline__ void bring_layer(int n) {
  await_description(n);
  const Layer& l = LayerPlace(n).layer();
  const int thread = static_cast<int>(threadIdx.x);
  prefetch_norms(l, thread);
  if (steps_head(l)) {
    ask_ahead(l, thread);
    take_residual<true>(n, kPartIn);
  } else {
    take_residual<false>(n, kPartIn);
  }
  mix(n);
  take_heads(n);
  take_residual<false>(n, kPartUp);
  take_hidden(n);
  leave_layer(n, run::this_lane());
}
__device__ __forceinline__ void bring_rows(int layers) {
  Shared* s = shared();
  const int i = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.x) * kTileRows + i % kTileRows +
                     i / kTileRows * (kBlocks * kTileRows);
  if (i < kMostOut * kTileRows && column < s->shape.embd * kSuperCols)
    s->mine[i / kTileRows][i % kTileRows] = s->hidden[column];
  row_warps_sync();
#pragma unroll 1
  for (int n = 0; n < layers; ++n) bring_layer(n);
}

#endif

}  // namespace tessera::gpu::dense_run
