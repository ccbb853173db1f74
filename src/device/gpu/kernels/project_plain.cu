// Products of many rows with F32, F16 and BF16 weights: routers and the delta net's gates, whose
// results may not see rounded activations. Each operand goes to the tensor units in two parts,
// three products in all (multiply_split): at most 3 * 2^-22 of a product is lost. Elsewhere f32
// arithmetic.
//
// A block computes 64 weight rows times 32 tokens, or 8 where that would leave the machine idle.
// Its four groups of two warps take a quarter of the columns each, in rising order, a warp 32 x 32
// (32 x 8); the quarters are added in their order. Floor: 6 * rows * cols * tokens operations at
// the TF32 rate (a router of 256 x 2048 and 4,096 tokens: 12.9 GFLOP, 0.03 ms at Hopper's 495
// TFLOP/s).
#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {
namespace {

constexpr int kRows = 64, kDepth = 32;
constexpr int kThreads = 256, kGroups = 4, kGroupThreads = kThreads / kGroups;

struct PlainOutput {
  Planes w;
  float* out;
  std::int64_t stride;
  bool add;
};
// Rows of one matrix, then those of another of the same columns.
struct PlainArgs {
  PlainOutput first, second;
  Input in;
  int tokens;
};

__device__ __forceinline__ float4 weight_four(const PlainArgs& args, int row, int column) {
  const bool later = row >= args.first.w.rows;
  const Planes& w = later ? args.second.w : args.first.w;
  if (later) row -= args.first.w.rows;
  const std::int64_t at = static_cast<std::int64_t>(row) * w.cols + column;
  if (w.type == BlockType::F32) return *reinterpret_cast<const float4*>(w.data + at * 4);
  const uint2 raw = *reinterpret_cast<const uint2*>(w.data + at * 2);
  const float2 a = plain_pair(w.type, raw.x), b = plain_pair(w.type, raw.y);
  return {a.x, a.y, b.x, b.y};
}

// One group's share of shared memory: tiles of weights and tokens, then the group's sums. The four
// columns between rows keep a warp's reads of operands in different banks.
template <int kTokens>
union GroupRoom {
  struct {
    float w[kRows][kDepth + 4], x[kTokens][kDepth + 4];
  } tile;
  float sums[kRows][kTokens + 1];
};

// A warp's sums of 32 weight rows and kTokens tokens: [16 rows][8 tokens][of the instruction].
template <int kTokens>
struct WarpSums {
  float of[2][kTokens / 8][4] = {};

  __device__ __forceinline__ void add(const GroupRoom<kTokens>& room, int row, int lane) {
    const int g = lane / 4, t = lane % 4;
#ifdef TESSERA_GPU_PTX
#pragma unroll
    for (int start = 0; start < kDepth; start += 8) {
      const int k = start + t;
      Split a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          a[i][j] = split(room.tile.w[row + 16 * i + g + j % 2 * 8][k + j / 2 * 4]);
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        const float* x = room.tile.x[8 * n + g];
        const Split b[2] = {split(x[k]), split(x[k + 4])};
#pragma unroll
        for (int i = 0; i < 2; ++i) multiply_split(of[i][n], a[i], b);
      }
    }
#else
    for (int k = 0; k < kDepth; ++k)
      for (int i = 0; i < 2; ++i)
        for (int n = 0; n < kTokens / 8; ++n)
          for (int j = 0; j < 4; ++j)
            of[i][n][j] = fmaf(room.tile.w[row + 16 * i + g + j / 2 * 8][k],
                               room.tile.x[8 * n + 2 * t + j % 2][k], of[i][n][j]);
#endif
  }
  __device__ __forceinline__ void store(GroupRoom<kTokens>& room, int row, int lane) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          room.sums[row + 16 * i + lane / 4 + j / 2 * 8][8 * n + lane % 4 * 2 + j % 2] =
              of[i][n][j];
  }
};

template <int kTokens>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const TESSERA_GRID_CONSTANT PlainArgs args) {
  constexpr int kWeights = kRows * kDepth / 4 / kGroupThreads;  // pieces a thread brings
  constexpr int kInputs = kTokens * kDepth / 4 / kGroupThreads;
  TESSERA_DYNAMIC_SHARED(char, shared);
  auto* rooms = reinterpret_cast<GroupRoom<kTokens>*>(shared);
  // 1 / rms of each head (gated_rms), or [group][token] sums of squares (rms_norm).
  float* inverse = reinterpret_cast<float*>(rooms + kGroups);
  chain_wait();
  chain_trigger();
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int n = min(kTokens, args.tokens - first);
  // A factor of the whole row is applied to the sums: its squares are added up on the way.
  const bool normed = args.in.kind == InputKind::rms_norm;
  if (args.in.kind == InputKind::gated_rms) inverse_rms(args.in, first, n, inverse);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  GroupRoom<kTokens>& room = rooms[group];
  const int cols = args.first.w.cols, rows = args.first.w.rows + args.second.w.rows;
  const int steps = (cols / kDepth + kGroups - 1) / kGroups;  // of each group, at most
  const int begin = group * steps * kDepth, end = min(cols, begin + steps * kDepth);
  const int column = thread % 8 * 4;
  float4 w_next[kWeights], x_next[kInputs], norm_next = {};
  float squares[kInputs] = {};
  const auto fetch = [&](int start) {
    if (start >= end) return;
#pragma unroll
    for (int i = 0; i < kWeights; ++i)
      w_next[i] = weight_four(args, min(first_row + i * 8 + thread / 8, rows - 1), start + column);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int token = min(i * 8 + thread / 8, n - 1);
      const float* x = input_row(args.in, first + token);
      x_next[i] = normed ? *reinterpret_cast<const float4*>(x + start + column)
                         : input_four(args.in, first, token, start + column, x, inverse);
    }
    if (normed) norm_next = *reinterpret_cast<const float4*>(args.in.weight + start + column);
  };
  const int row = thread / kWarp * 32, lane = thread % kWarp;
  WarpSums<kTokens> sums;
  fetch(begin);
  for (int step = 0; step < steps; ++step) {
    const int start = begin + step * kDepth;
    __syncthreads();
    if (start < end) {
#pragma unroll
      for (int i = 0; i < kWeights; ++i)
        *reinterpret_cast<float4*>(&room.tile.w[i * 8 + thread / 8][column]) = w_next[i];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        float4 x = x_next[i];
        if (normed) {
          squares[i] += sum_squares(x);
          x.x *= norm_next.x, x.y *= norm_next.y, x.z *= norm_next.z, x.w *= norm_next.w;
        }
        *reinterpret_cast<float4*>(&room.tile.x[i * 8 + thread / 8][column]) = x;
      }
    }
    __syncthreads();
    if (start >= end) continue;
    fetch(start + kDepth);
    sums.add(room, row, lane);
  }
  __syncthreads();
  sums.store(room, row, lane);
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    for (int mask = 4; mask > 0; mask /= 2) squares[i] += shuffle_xor(squares[i], mask);
    if (normed && thread % 8 == 0) inverse[group * kTokens + i * 8 + thread / 8] = squares[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kTokens; i += kThreads) {
    const int r = i % kRows, t = i / kRows;
    if (first_row + r >= rows || t >= n) continue;
    float all = 0;
    for (int part = 0; part < kGroups; ++part) all += rooms[part].sums[r][t];
    if (normed) {
      float square = 0;
      for (int part = 0; part < kGroups; ++part) square += inverse[part * kTokens + t];
      all *= inverse_root(square / static_cast<float>(cols) + args.in.eps);
    }
    const bool later = first_row + r >= args.first.w.rows;
    const PlainOutput& to = later ? args.second : args.first;
    float* at = to.out + (first + t) * to.stride + first_row + r - (later ? args.first.w.rows : 0);
    *at = to.add ? *at + all : all;
  }
}

template <int kTokens>
GpuError launch_plain(const Launch& launch, const PlainArgs& args) {
  const int rows = args.first.w.rows + args.second.w.rows;
  const dim3 grid(static_cast<unsigned>((rows + kRows - 1) / kRows),
                  static_cast<unsigned>((args.tokens + kTokens - 1) / kTokens));
  const std::size_t shared =
      kGroups * sizeof(GroupRoom<kTokens>) +
      sizeof(float) * static_cast<std::size_t>(staged_scratch_floats(args.in, kTokens));
  return launch_kernel(launch, plain_kernel<kTokens>, grid, dim3(kThreads), shared, args);
}

PlainOutput plain_output(const Output& output) {
  return {planes_of(output.w), output.out, output.stride, output.add};
}

}  // namespace

GpuError project_plain(const Launch& launch, const Input& input, const Output& output,
                       const Output& second, int rows) {
  const PlainArgs args{plain_output(output), plain_output(second), input, rows};
  const int wide = (output.w.rows + second.w.rows + kRows - 1) / kRows * ((rows + 31) / 32);
  return wide < launch.multiprocessors ? launch_plain<8>(launch, args)
                                       : launch_plain<32>(launch, args);
}

bool shares_plain(const Output& output, const Output& second) {
  return is_plain(second.w.type) && output.w.cols == second.w.cols &&
         output.w.rows % kRows + second.w.rows <= kRows;
}

}  // namespace tessera::gpu
