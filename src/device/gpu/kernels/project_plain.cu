// Products of many rows with F32, F16 and BF16 weights in f32 arithmetic: routers and the delta
// net's gates, whose results may not see rounded activations.
//
// A block computes 64 weight rows times 32 tokens, or 8 where that would leave the machine idle.
// Its four groups of 64 threads take a quarter of the columns each, in rising order, a thread 8 x 4
// (8 x 1); the quarters are added in their order. Floor: 2 * rows * cols * tokens operations at the
// f32 rate (a router of 256 x 2048 and 4,096 tokens: 4.3 GFLOP, 0.07 ms at 60 TFLOP/s).
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

// Four columns of one row each, turned: tile[column][row].
template <int kStride>
__device__ __forceinline__ void put_turned(float (*tile)[kStride], int column, int row, float4 v) {
  tile[column][row] = v.x;
  tile[column + 1][row] = v.y;
  tile[column + 2][row] = v.z;
  tile[column + 3][row] = v.w;
}

// One group's share of shared memory: tiles of weights and tokens, then the group's sums.
template <int kTokens>
union GroupRoom {
  struct {
    float w[kDepth][kRows + 4], x[kDepth][kTokens + 4];
  } tile;
  float sums[kRows][kTokens + 1];
};

template <int kTokens>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const TESSERA_GRID_CONSTANT PlainArgs args) {
  constexpr int kWeights = kRows * kDepth / 4 / kGroupThreads;  // pieces a thread brings
  constexpr int kEach = kTokens / 8;                            // tokens a thread
  constexpr int kInputs = kTokens * kDepth / 4 / kGroupThreads;
  TESSERA_DYNAMIC_SHARED(char, shared);
  auto* rooms = reinterpret_cast<GroupRoom<kTokens>*>(shared);
  float* inverse = reinterpret_cast<float*>(rooms + kGroups);
  chain_wait();
  chain_trigger();
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int n = min(kTokens, args.tokens - first);
  if (args.in.kind != InputKind::plain) inverse_rms(args.in, first, n, inverse);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  GroupRoom<kTokens>& room = rooms[group];
  const int cols = args.first.w.cols, rows = args.first.w.rows + args.second.w.rows;
  const int steps = (cols / kDepth + kGroups - 1) / kGroups;  // of each group, at most
  const int begin = group * steps * kDepth, end = min(cols, begin + steps * kDepth);
  const int column = thread % 8 * 4;
  float4 w_next[kWeights], x_next[kInputs];
  const auto fetch = [&](int start) {
    if (start >= end) return;
#pragma unroll
    for (int i = 0; i < kWeights; ++i)
      w_next[i] = weight_four(args, min(first_row + i * 8 + thread / 8, rows - 1), start + column);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int token = min(i * 8 + thread / 8, n - 1);
      x_next[i] = input_four(args.in, first, token, start + column,
                             input_row(args.in, first + token), inverse);
    }
  };
  const int row = thread / 8 * 8, token = thread % 8 * kEach;
  float sum[8][kEach] = {};
  fetch(begin);
  for (int step = 0; step < steps; ++step) {
    const int start = begin + step * kDepth;
    __syncthreads();
    if (start < end) {
#pragma unroll
      for (int i = 0; i < kWeights; ++i)
        put_turned(room.tile.w, column, i * 8 + thread / 8, w_next[i]);
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
        put_turned(room.tile.x, column, i * 8 + thread / 8, x_next[i]);
    }
    __syncthreads();
    if (start >= end) continue;
    fetch(start + kDepth);
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
      float a[8], b[kEach];
      *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(&room.tile.w[k][row]);
      *reinterpret_cast<float4*>(a + 4) =
          *reinterpret_cast<const float4*>(&room.tile.w[k][row + 4]);
#pragma unroll
      for (int j = 0; j < kEach; ++j) b[j] = room.tile.x[k][token + j];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) room.sums[row + i][token + j] = sum[i][j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kTokens; i += kThreads) {
    const int r = i % kRows, t = i / kRows;
    if (first_row + r >= rows || t >= n) continue;
    float all = 0;
    for (int g = 0; g < kGroups; ++g) all += rooms[g].sums[r][t];
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
