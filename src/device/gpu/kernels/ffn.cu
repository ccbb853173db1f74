// The FFN block put together: router, choice, branches, and the sum with its norms.
#include "device/gpu/kernels/ffn.cuh"

#include <algorithm>

#include "device/gpu/kernels/away.cuh"
#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/ffn_tiles.cuh"
#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/run_plan.h"

namespace tessera::gpu {
namespace {

__global__ void __launch_bounds__(kDecodeThreads)
    select_kernel(const TESSERA_GRID_CONSTANT MoeArgs moe, float factor,
                  const TESSERA_GRID_CONSTANT AwayArgs away, const float* hidden, int n_embd) {
  __shared__ Selection s;
  __shared__ Foreseen foreseen;
  chain_wait();
  chain_trigger();
  const std::int64_t row = blockIdx.x;
  if (away.step != nullptr && away.x != nullptr) send_row(away, row, n_embd, hidden);
  const int seen = away.foreseen != nullptr ? static_cast<int>(gridDim.x) * moe.n_used : 0;
  foreseen.load(away.foreseen, seen, moe.n_expert);
  select_experts(moe, moe.logits + row * moe.n_expert, factor, s);
  if (away.step != nullptr && moe.linked != nullptr) take_reads(moe, away, foreseen, row, s.ids);
  if (static_cast<int>(threadIdx.x) < moe.n_used) {
    const std::int64_t pair = row * moe.n_used + threadIdx.x;
    if (moe.ids != nullptr) moe.ids[pair] = s.ids[threadIdx.x];
    if (moe.weights != nullptr) moe.weights[pair] = s.weights[threadIdx.x];
  }
  if (away.step != nullptr) post_row(away, row, moe.n_used, s.ids, s.weights);
}

// 1 / rms of a row in shared memory.
__device__ float row_factor(const float* x, int n, float eps, float* partial) {
  float sum = 0;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < n; c += 4 * kDecodeThreads)
    sum += sum_squares(*reinterpret_cast<const float4*>(x + c));
  sum = block_sum(sum, partial);
  __syncthreads();
  return inverse_root(sum / static_cast<float>(n) + eps);
}

__device__ void norm_row(float* x, const float* weight, int n, float eps, float* partial) {
  const float factor = row_factor(x, n, eps, partial);
  for (int c = 4 * static_cast<int>(threadIdx.x); c < n; c += 4 * kDecodeThreads)
    for (int i = c; i < c + 4; ++i) x[i] *= factor * weight[i];
}

// sigmoid(scalar_gate . rms_norm(hidden row))
__device__ float dense_gate_of(const FfnArgs& args, const float* hidden, float* partial) {
  float squares = 0, sum = 0;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < args.n_embd; c += 4 * kDecodeThreads) {
    const auto four = [c](const float* at) { return *reinterpret_cast<const float4*>(at + c); };
    const float4 x = four(hidden), norm = four(args.norm), gate = four(args.dense.scalar_gate);
    squares += sum_squares(x);
    sum = fmaf(x.x * norm.x, gate.x, sum), sum = fmaf(x.y * norm.y, gate.y, sum);
    sum = fmaf(x.z * norm.z, gate.z, sum), sum = fmaf(x.w * norm.w, gate.w, sum);
  }
  squares = block_sum(squares, partial);
  __syncthreads();
  sum = block_sum(sum, partial);
  __syncthreads();
  return sigmoid(sum * inverse_root(squares / static_cast<float>(args.n_embd) + args.eps));
}

// Columns c..c+3 of a row's weighted sum over its experts, but those in `lacks`.
__device__ __forceinline__ float4 expert_sum(const FfnArgs& args, std::int64_t row, int c,
                                             std::uint32_t lacks) {
  float4 sum = {0, 0, 0, 0};
#pragma unroll 4
  for (int slot = 0; slot < args.moe.n_used; ++slot) {
    if ((lacks >> slot & 1) != 0) continue;
    const std::int64_t pair = row * args.moe.n_used + slot;
    const float4 v = *reinterpret_cast<const float4*>(args.pair_out + pair * args.n_embd + c);
    const float weight = args.moe.weights[pair];
    sum.x = fmaf(v.x, weight, sum.x), sum.y = fmaf(v.y, weight, sum.y);
    sum.z = fmaf(v.z, weight, sum.z), sum.w = fmaf(v.w, weight, sum.w);
  }
  return sum;
}

// Every thread keeps to its own columns, four at a time, so the row needs no barrier but those of
// the sums. The experts' outputs are most of what is read (8 of 11 rows of f32): they come first,
// so that nobody waits for a sum before asking for them.
__global__ void __launch_bounds__(kDecodeThreads)
    finish_kernel(const TESSERA_GRID_CONSTANT FfnArgs args,
                  const TESSERA_GRID_CONSTANT AwayArgs away) {
  TESSERA_DYNAMIC_SHARED(float, branch);  // [n_embd], then [n_embd] where both branches are there
  __shared__ float partial[kDecodeWarps];
  chain_wait();
  chain_trigger();
  const int n = args.n_embd, own = 4 * static_cast<int>(threadIdx.x);
  constexpr int kStep = 4 * kDecodeThreads;
  const std::int64_t row = blockIdx.x;
  float* hidden = args.hidden + row * n;
  const bool dense = args.dense.gate.data != nullptr, moe = args.moe.n_expert > 0;
  float* moe_sum = dense ? branch + n : branch;
  const auto four = [](float* at) -> float4& { return *reinterpret_cast<float4*>(at); };
  const std::uint32_t lacks =
      !moe || away.step == nullptr ? 0 : slots_away(args.moe, args.moe.ids + row * args.moe.n_used);
  if (moe)
    for (int c = own; c < n; c += kStep) four(moe_sum + c) = expert_sum(args, row, c, lacks);
  if (dense) {
    const float gate =
        args.dense.scalar_gate == nullptr ? 1.0f : dense_gate_of(args, hidden, partial);
    for (int c = own; c < n; c += kStep) {
      const float4 v = four(args.dense_out + row * n + c);
      four(branch + c) = {v.x * gate, v.y * gate, v.z * gate, v.w * gate};
    }
    if (args.dense.post_norm != nullptr)
      norm_row(branch, args.dense.post_norm, n, args.eps, partial);
  }
  if (moe) {
    // Last, so that all of the above is done while the host computes.
    if (lacks != 0 && await_sums(away, row))
      for (int c = own; c < n; c += kStep) {
        const float4 v = answered_four(away, row * n + c);
        float4& sum = four(moe_sum + c);
        sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
      }
    if (args.moe.post_norm != nullptr) norm_row(moe_sum, args.moe.post_norm, n, args.eps, partial);
    if (dense)
      for (int c = own; c < n; c += kStep)
        for (int i = c; i < c + 4; ++i) branch[i] += moe_sum[i];
  }
  if (args.post_norm != nullptr) norm_row(branch, args.post_norm, n, args.eps, partial);
  const float scale = args.layer_scale == nullptr ? 1.0f : *args.layer_scale;
  for (int c = own; c < n; c += kStep) {
    const float4 x = four(hidden + c), y = four(branch + c);
    four(hidden + c) = {(x.x + y.x) * scale, (x.y + y.y) * scale, (x.z + y.z) * scale,
                        (x.w + y.w) * scale};
  }
}

bool fusable(const FfnArgs& args) {
  return args.rows <= kDecodeRows && args.dense.post_norm == nullptr &&
         args.moe.post_norm == nullptr && args.post_norm == nullptr && args.moe.norm == nullptr &&
         !args.moe.router.own_input && args.moe.n_expert > 0;
}

bool routes_by_gemm(const Launch& launch, const FfnArgs& args) {
  const Output router{.w = args.moe.router_weight};
  return args.moe.n_expert > 0 && goes_by_gemm(launch, args.rows, {&router, 1},
                                               tiles_scratch(args, launch.workspace).weights);
}
// Whether the route's rows, as tiles_scratch() has them, are those that the experts read.
bool leaves_halves(const Launch& launch, const FfnArgs& args) {
  return routes_by_gemm(launch, args) && !args.moe.router.own_input;
}

// Behind the router, which is called for unless the mixer's projection brought it.
GpuError together(const Launch& launch, const FfnArgs& args, const ProjectArgs* next) {
  if (args.routed) return ffn_together(launch, args, routed_scratch(args), next);
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  const GpuError error = ffn_logits(launch, args, scratch);
  return error != GpuError{} ? error : ffn_together(launch, args, scratch, next);
}

GpuError fused(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch) {
  if (goes_together(args)) return together(launch, args, nullptr);
  if (args.routed) return TESSERA_GPU_API(ErrorInvalidValue);  // routes() was not asked
  GpuError error = ffn_logits(launch, args, scratch);
  if (error == GpuError{})
    error = expert_hidden(launch, args, scratch, args.dense.gate.data != nullptr, true);
  if (error == GpuError{}) error = fused_output(launch, args, scratch);
  return error;
}

}  // namespace

FfnScratch ffn_scratch(const FfnArgs& args, void* workspace) {
  auto* floats = static_cast<float*>(workspace);
  const TilesLayout at = tiles_layout(args);
  auto* bytes = static_cast<std::byte*>(workspace);
  return {.h = floats + (args.rows + 63) / 64 * 64,
          .dense_gate = floats,
          .x_rounded = bytes + at.x,
          .h_rounded = bytes + at.h};
}

// The workspace is the projection's, whose rows are read while the router's are written.
FfnScratch routed_scratch(const FfnArgs& args) {
  constexpr run::PassedLayout kAt = run::passed_layout();
  return {.dense_gate = reinterpret_cast<float*>(args.passed + kAt.rows_gate),
          .x_rounded = args.passed + kAt.rows_rounded};
}

GpuError ffn_logits(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch) {
  const MoeArgs& moe = args.moe;
  ProjectArgs product{
      .input = ffn_input(args, moe.router.own_input ? moe.router_scale : expert_norm(args)),
      .rows = args.rows,
      .n_outputs = 1};
  product.outputs[0] = {moe.router_weight, moe.logits, moe.n_expert, false};
  if (args.dense.scalar_gate != nullptr && fusable(args)) {
    product.n_outputs = 2;
    product.outputs[1] = {{BlockType::F32, 1, args.n_embd,
                           reinterpret_cast<const std::byte*>(args.dense.scalar_gate)},
                          scratch.dense_gate,
                          1,
                          false};
  }
  if (routes_by_gemm(launch, args)) {
    const TilesScratch tiles = tiles_scratch(args, launch.workspace);
    const GpuError error = halve_rows(launch, product.input, args.rows, tiles.x, tiles.x_rest);
    if (error != GpuError{}) return error;
    return gemm(launch, {product.outputs.data(), 1}, tiles.x, tiles.x_rest, args.rows,
                tiles.weights);
  }
  if (args.rows > kDecodeRows)
    return project_plain(launch, product.input, product.outputs[0], {}, args.rows);
  const bool leave = fusable(args) && has_hidden_supers(args, args.dense.gate.data != nullptr);
  return project_decode(launch, product, {.rows = scratch.x_rounded, .leave = leave});
}

namespace {

GpuError select(const Launch& launch, const FfnArgs& args, const AwayArgs& away) {
  if (args.moe.n_expert == 0) return GpuError{};
  const GpuError error = ffn_logits(launch, args, ffn_scratch(args, launch.workspace));
  if (error != GpuError{}) return error;
  // A thread an expert: more would keep other rows' blocks away.
  const int threads = std::min(kDecodeThreads, (args.moe.n_expert + kWarp - 1) / kWarp * kWarp);
  return launch_kernel(launch, select_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(static_cast<unsigned>(threads)), 0, args.moe, router_factor(args), away,
                       args.hidden, args.n_embd);
}

GpuError finish(const Launch& launch, const FfnArgs& args, const AwayArgs& away) {
  const bool both = args.dense.gate.data != nullptr && args.moe.n_expert > 0;
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(args.n_embd) * (both ? 2 : 1);
  return launch_kernel(launch, finish_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(kDecodeThreads), shared, args, away);
}

// Branches of many rows: each through tiles where its types allow. `routed`: nothing but the route
// was computed since the layer began.
GpuError many_branches(const Launch& launch, const FfnArgs& args, float* dense_out, bool add,
                       bool routed) {
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  const TilesScratch tiles = tiles_scratch(args, launch.workspace);
  GpuError error{};
  const bool dense = args.dense.gate.data != nullptr, moe = args.moe.n_expert > 0;
  const bool moe_tiles = experts_have_tiles(args);
  // The norm of what tiles.x holds, where it holds any.
  bool any = routed && leaves_halves(launch, args);
  const float* staged = any ? expert_norm(args) : nullptr;
  const auto stage = [&](const float* norm) {
    if ((any && staged == norm) || error != GpuError{}) return;
    error = halve_rows(launch, ffn_input(args, norm), args.rows, tiles.x, {});
    staged = norm;
    any = true;
  };
  if (dense && dense_has_tiles(args)) {
    stage(args.norm);
    if (error == GpuError{}) error = dense_tiles(launch, args, tiles, dense_out, add);
  } else if (dense) {
    any = false;  // its rounded rows may take their place
    error = dense_hidden(launch, args, scratch);
    if (error == GpuError{}) error = dense_output(launch, args, scratch, dense_out, add);
  }
  if (moe && moe_tiles) {
    stage(expert_norm(args));
    if (error == GpuError{}) error = sort_pairs(launch, args, tiles);
    if (error == GpuError{})
      error = expert_tiles(launch, args, tiles, args.moe.n_expert, args.rows * args.moe.n_used);
  } else if (moe && error == GpuError{}) {
    error = expert_hidden(launch, args, scratch, false, false);
    if (error == GpuError{}) error = pair_output(launch, args, scratch);
  }
  return error;
}

}  // namespace

GpuError ffn_branches(const Launch& launch, const FfnArgs& args) {
  if (args.rows > kDecodeRows) return many_branches(launch, args, args.dense_out, false, false);
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  GpuError error{};
  if (args.dense.gate.data != nullptr) {
    error = dense_hidden(launch, args, scratch);
    if (error == GpuError{}) error = dense_output(launch, args, scratch, args.dense_out, false);
  }
  if (error == GpuError{} && args.moe.n_expert > 0) {
    error = expert_hidden(launch, args, scratch, false, false);
    if (error == GpuError{}) error = pair_output(launch, args, scratch);
  }
  return error;
}

// What branches staged of many rows for the tiles is in the workspace still.
GpuError ffn_more_experts(const Launch& launch, const FfnArgs& args, int experts, int pairs) {
  if (args.rows > kDecodeRows && experts_have_tiles(args))
    return expert_tiles(launch, args, tiles_scratch(args, launch.workspace), experts, pairs);
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  const GpuError error = expert_hidden(launch, args, scratch, false, false);
  return error != GpuError{} ? error : pair_output(launch, args, scratch);
}

GpuError ffn_route(const Launch& launch, const FfnArgs& args) {
  return select(launch, args, {});
}
GpuError ffn_post(const Launch& launch, const FfnArgs& args, const AwayArgs& away) {
  return select(launch, args, away);
}
GpuError ffn_finish(const Launch& launch, const FfnArgs& args) {
  return finish(launch, args, {});
}
GpuError ffn_finish_answered(const Launch& launch, const FfnArgs& args, const AwayArgs& away) {
  return finish(launch, args, away);
}

GpuError ffn_and_next(const Launch& launch, const FfnArgs& args, const ProjectArgs& next) {
  return together(launch, args, &next);
}

GpuError ffn_all(const Launch& launch, const FfnArgs& args) {
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  if (fusable(args)) return fused(launch, args, scratch);
  if (args.moe.n_expert == 0 && args.dense.post_norm == nullptr && args.post_norm == nullptr &&
      args.dense.scalar_gate == nullptr && args.layer_scale == nullptr) {
    // Nothing between the branch and the residual.
    if (args.rows > kDecodeRows) return many_branches(launch, args, args.hidden, true, false);
    const GpuError error = dense_hidden(launch, args, scratch);
    return error != GpuError{} ? error : dense_output(launch, args, scratch, args.hidden, true);
  }
  GpuError error = ffn_route(launch, args);
  if (error == GpuError{})
    error = args.rows > kDecodeRows ? many_branches(launch, args, args.dense_out, false, true)
                                    : ffn_branches(launch, args);
  if (error == GpuError{}) error = ffn_finish(launch, args);
  return error;
}

}  // namespace tessera::gpu
