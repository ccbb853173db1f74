// The FFN block put together: router, choice, branches, and the sum with its norms.
#include "device/gpu/kernels/ffn.cuh"

#include <algorithm>

#include "device/gpu/kernels/away.cuh"
#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/ffn_tiles.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {
namespace {

__global__ void __launch_bounds__(kDecodeThreads)
    select_kernel(const TESSERA_GRID_CONSTANT MoeArgs moe, float factor,
                  const TESSERA_GRID_CONSTANT AwayArgs away, const float* hidden, int n_embd) {
  __shared__ Selection s;
  chain_wait();
  chain_trigger();
  const std::int64_t row = blockIdx.x;
  select_experts(moe, moe.logits + row * moe.n_expert, factor, s);
  if (static_cast<int>(threadIdx.x) < moe.n_used) {
    moe.ids[row * moe.n_used + threadIdx.x] = s.ids[threadIdx.x];
    moe.weights[row * moe.n_used + threadIdx.x] = s.weights[threadIdx.x];
  }
  if (away.step != nullptr)
    post_row(away, row, moe.n_used, n_embd, s.ids, s.weights, hidden, slots_away(moe, s.ids) != 0);
}

// 1 / rms of a row in shared memory.
__device__ float row_factor(const float* x, int n, float eps, float* partial) {
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
    sum = fmaf(x[c], x[c], sum);
  sum = block_sum(sum, partial);
  __syncthreads();
  return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

__device__ void norm_row(float* x, const float* weight, int n, float eps, float* partial) {
  const float factor = row_factor(x, n, eps, partial);
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
    x[c] *= factor * weight[c];
}

// sigmoid(scalar_gate . rms_norm(hidden row))
__device__ float dense_gate_of(const FfnArgs& args, const float* hidden, float* partial) {
  const float factor = row_factor(hidden, args.n_embd, args.eps, partial);
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kDecodeThreads)
    sum = fmaf(hidden[c] * factor * args.norm[c], args.dense.scalar_gate[c], sum);
  sum = block_sum(sum, partial);
  __syncthreads();
  return sigmoid(sum);
}

// Every thread keeps to its own columns, so the row needs no barrier but those of the sums.
__global__ void __launch_bounds__(kDecodeThreads)
    finish_kernel(const TESSERA_GRID_CONSTANT FfnArgs args,
                  const TESSERA_GRID_CONSTANT AwayArgs away) {
  TESSERA_DYNAMIC_SHARED(float, branch);  // [n_embd], then [n_embd] where both branches are there
  __shared__ float partial[kDecodeWarps];
  chain_wait();
  chain_trigger();
  const int n = args.n_embd;
  const std::int64_t row = blockIdx.x;
  float* hidden = args.hidden + row * n;
  const bool dense = args.dense.gate.data != nullptr, moe = args.moe.n_expert > 0;
  float* moe_sum = dense ? branch + n : branch;
  if (dense) {
    const float gate =
        args.dense.scalar_gate == nullptr ? 1.0f : dense_gate_of(args, hidden, partial);
    for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
      branch[c] = args.dense_out[row * n + c] * gate;
    if (args.dense.post_norm != nullptr)
      norm_row(branch, args.dense.post_norm, n, args.eps, partial);
  }
  if (moe) {
    const std::uint32_t lacks =
        away.step == nullptr ? 0 : slots_away(args.moe, args.moe.ids + row * args.moe.n_used);
    for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads) {
      float sum = 0;
      for (int slot = 0; slot < args.moe.n_used; ++slot) {
        if ((lacks >> slot & 1) != 0) continue;
        const std::int64_t pair = row * args.moe.n_used + slot;
        sum = fmaf(args.pair_out[pair * n + c], args.moe.weights[pair], sum);
      }
      moe_sum[c] = sum;
    }
    if (lacks != 0 && await_sums(away, row))
      for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
        moe_sum[c] += static_cast<const volatile float*>(away.sums)[row * n + c];
    if (args.moe.post_norm != nullptr) norm_row(moe_sum, args.moe.post_norm, n, args.eps, partial);
    if (dense)
      for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
        branch[c] += moe_sum[c];
  }
  if (args.post_norm != nullptr) norm_row(branch, args.post_norm, n, args.eps, partial);
  const float scale = args.layer_scale == nullptr ? 1.0f : *args.layer_scale;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kDecodeThreads)
    hidden[c] = (hidden[c] + branch[c]) * scale;
}

bool fusable(const FfnArgs& args) {
  return args.rows <= kDecodeRows && args.dense.post_norm == nullptr &&
         args.moe.post_norm == nullptr && args.post_norm == nullptr && args.moe.norm == nullptr &&
         !args.moe.router.own_input && args.moe.n_expert > 0;
}

GpuError fused(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch) {
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

// Branches of many rows: each through tiles where its types allow.
GpuError many_branches(const Launch& launch, const FfnArgs& args, float* dense_out, bool add) {
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  const TilesScratch tiles = tiles_scratch(args, launch.workspace);
  const int padded = (args.n_embd + kTileCols - 1) / kTileCols * kTileCols;
  GpuError error{};
  const bool dense = args.dense.gate.data != nullptr, moe = args.moe.n_expert > 0;
  const bool moe_tiles = experts_have_tiles(args);
  bool any = false;
  const float* staged = nullptr;  // the norm of what tiles.x holds, where it holds any
  const auto stage = [&](const float* norm) {
    if ((any && staged == norm) || error != GpuError{}) return;
    error = halve_rows(launch, ffn_input(args, norm), args.rows, padded, tiles.x);
    staged = norm;
    any = true;
  };
  if (dense && dense_has_tiles(args)) {
    stage(args.norm);
    if (error == GpuError{}) error = dense_tiles(launch, args, tiles, dense_out, add);
  } else if (dense) {
    error = dense_hidden(launch, args, scratch);
    if (error == GpuError{}) error = dense_output(launch, args, scratch, dense_out, add);
  }
  if (moe && moe_tiles) {
    stage(expert_norm(args));
    if (error == GpuError{}) error = sort_pairs(launch, args, tiles);
    const int pairs = args.rows * args.moe.n_used;
    const int most = std::min(pairs, pairs / kNarrowTokens + args.moe.n_expert);
    if (error == GpuError{}) error = expert_tiles(launch, args, tiles, most);
  } else if (moe && error == GpuError{}) {
    error = expert_hidden(launch, args, scratch, false, false);
    if (error == GpuError{}) error = pair_output(launch, args, scratch);
  }
  return error;
}

}  // namespace

GpuError ffn_branches(const Launch& launch, const FfnArgs& args) {
  if (args.rows > kDecodeRows) return many_branches(launch, args, args.dense_out, false);
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
GpuError ffn_more_experts(const Launch& launch, const FfnArgs& args, int tiles) {
  if (args.rows > kDecodeRows && experts_have_tiles(args))
    return expert_tiles(launch, args, tiles_scratch(args, launch.workspace), tiles);
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

GpuError ffn_all(const Launch& launch, const FfnArgs& args) {
  const FfnScratch scratch = ffn_scratch(args, launch.workspace);
  if (fusable(args)) return fused(launch, args, scratch);
  if (args.moe.n_expert == 0 && args.dense.post_norm == nullptr && args.post_norm == nullptr &&
      args.dense.scalar_gate == nullptr && args.layer_scale == nullptr) {
    // Nothing between the branch and the residual.
    if (args.rows > kDecodeRows) return many_branches(launch, args, args.hidden, true);
    const GpuError error = dense_hidden(launch, args, scratch);
    return error != GpuError{} ? error : dense_output(launch, args, scratch, args.hidden, true);
  }
  GpuError error = ffn_route(launch, args);
  if (error == GpuError{}) error = ffn_branches(launch, args);
  if (error == GpuError{}) error = ffn_finish(launch, args);
  return error;
}

}  // namespace tessera::gpu
