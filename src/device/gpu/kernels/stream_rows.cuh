// How the blocks of a product of many super-blocks a multiprocessor (project_stream.cu) bring their
// rows: one is normed and rounded by each team, while its first weights come; several come rounded,
// and what gate and up have rounded comes so in any case.
#pragma once

#include "device/gpu/kernels/bulk_copy.cuh"
#include "device/gpu/kernels/stream_line.cuh"

namespace tessera::gpu {

// So many of a row's super-blocks a warp loads at a time. Half a row that is not there rounded has
// hardly more than there are warps, and with two at a time the weights on their way were spilled
// (docs/gpu-kernels-measured.md, "Two blocks a team").
template <int kParts>
inline constexpr int kBatch = kParts > 1 ? 1 : 2;

// --- Between the blocks of a team ---

// Ahead of the first store in the other block, which has to have begun.
template <int kParts>
__device__ __forceinline__ void team_begins() {
#ifdef TESSERA_GPU_WGMMA
  if constexpr (kParts > 1) cluster_arrive();
#endif
}
template <int kParts>
__device__ __forceinline__ void team_has_begun() {
#ifdef TESSERA_GPU_WGMMA
  if constexpr (kParts > 1) {
    __syncwarp();  // the cluster's barriers are for warps in step
    cluster_await();
  }
#endif
}
// To the same place of the other block.
template <int kParts>
__device__ __forceinline__ void give(const Team<kParts>& team, float* at, float value) {
#ifdef TESSERA_GPU_WGMMA
  if constexpr (kParts > 1) store_in(1 - team.rank, at, value);
#endif
}
template <int kParts>
__device__ __forceinline__ void team_sync() {
#ifdef TESSERA_GPU_WGMMA
  if constexpr (kParts > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

// --- Rows ---

// Of the team's columns the block's stand in shared memory; squares of all of them.
template <int kCols, int kParts>
struct Rows {
  const SuperArgs& args;
  const Team<kParts>& team;
  int first, n, warp, lane;
  char* shared;

  // Those of the block's super-blocks that are there rounded. One row's are of a plain input, which
  // has no squares.
  __device__ __forceinline__ int here() const {
    return max(0, min(team.supers, args.here - team.begin));
  }
  __device__ __forceinline__ void copy() const {
    if constexpr (kCols > 1) {
      for (int super = warp; super < here(); super += kStreamWarps)
        copy_super(args, first, n, team.begin + super, super, lane, shared);
      if (kParts > 1 && args.in.kind == InputKind::rms_norm)
        for (int i = warp; i < n; i += kStreamWarps) copy_squares(i);
    } else {
      const auto* from =
          reinterpret_cast<const uint4*>(rounded_row(args.rounded, args.in.cols, first) +
                                         team.begin * kSuperBytes);
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < here() * kSuperBytes / 16;
           i += kStreamWarps * kWarp)
        reinterpret_cast<uint4*>(shared)[i] = from[i];
    }
  }
  // A row's, of the team's other super-blocks that are there rounded.
  __device__ __forceinline__ void copy_squares(int i) const {
    const float* from =
        rounded_squares(rounded_row(args.rounded, args.in.cols, first + i), args.in.cols);
    for (int super = lane; super < args.here; super += kWarp)
      if (super < team.begin || super >= team.begin + team.supers) *square(i, super) = from[super];
  }
  __device__ __forceinline__ float* square(int row, int super) const {
    return reinterpret_cast<float*>(shared + args.room.squares) + row * args.supers + super;
  }
  __device__ __forceinline__ Eight weight(int super) const {
    return super_weight(args.in, team.begin + super, lane);
  }
  __device__ __forceinline__ InputSuper load(int row, int super) const {
    return load_input(args.in, first + row, team.begin + super, lane);
  }
  __device__ __forceinline__ void stage(int row, int super, const InputSuper& read,
                                        const Eight& weight) const {
    float* squares = square(row, team.begin + super);
    put_input(args.in, read, weight, lane,
              shared + row * args.room.row_bytes + super * kSuperBytes, squares);
    if (args.in.kind == InputKind::rms_norm && lane == 0) give(team, squares, *squares);
  }

  // Waits for the kernels before and brings their rows to shared memory. Ends with a barrier.
  __device__ __forceinline__ void wait_and_stage() const {
    const int from = here();
    Eight weights[kBatch<kParts>];
#pragma unroll
    for (int i = 0; i < kBatch<kParts>; ++i)
      if (kCols == 1 && from + warp + i * kStreamWarps < team.supers)
        weights[i] = weight(from + warp + i * kStreamWarps);
    chain_wait();
    chain_trigger();
    copy();
    team_has_begun<kParts>();
    // Of several rows, few that are not there.
    if constexpr (kCols > 1) {
      for (int i = from * n + warp; i < team.supers * n; i += kStreamWarps)
        stage(i % n, i / n, load(i % n, i / n), weight(i / n));
    } else {
      for (int base = from + warp; base < team.supers; base += kBatch<kParts> * kStreamWarps) {
        InputSuper read[kBatch<kParts>];
#pragma unroll
        for (int i = 0; i < kBatch<kParts>; ++i) {
          const int super = base + i * kStreamWarps;
          if (super >= team.supers) break;
          read[i] = load(0, super);
          if (base != from + warp) weights[i] = weight(super);
        }
#pragma unroll
        for (int i = 0; i < kBatch<kParts>; ++i) {
          const int super = base + i * kStreamWarps;
          if (super >= team.supers) break;
          stage(0, super, read[i], weights[i]);
        }
      }
    }
    __syncthreads();
  }
};

}  // namespace tessera::gpu
