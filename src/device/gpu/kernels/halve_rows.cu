// Rows of f32 as rows of halves: four columns a lane and 128 a warp at a time, in registers.
//
// A warp takes 512 columns of a row; of one that is normed as a whole the warps of a block take
// turns, after all have added up its squares. Floor: a row's bytes in
// f32 and f16 (4,096 rows of 2048: 50 MB, 11 us at 4.6 TB/s).
#include "device/gpu/kernels/half_rows.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kStep = 4 * kWarp;  // columns
constexpr int kHeld = 4;          // steps in registers
constexpr int kPart = kHeld * kStep;

__device__ __forceinline__ void scale_by(float4& v, float factor, float4 w) {
  v.x *= factor * w.x, v.y *= factor * w.y, v.z *= factor * w.z, v.w *= factor * w.w;
}

// 1 / rms of the head of column c, whose squares a lane of a head adds up with the others, where it
// has a power of two of them; else each lane reads all of it.
__device__ __forceinline__ float head_factor(const Input& in, const float* x, int c, float4 v) {
  const int lanes = in.head_dim / 4;
  float sum = sum_squares(v);
  if (lanes <= kWarp && (lanes & (lanes - 1)) == 0) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  } else {
    const float* head = x + c / in.head_dim * in.head_dim;
    sum = 0;
    for (int i = 0; i < in.head_dim && c < in.cols; i += 4) sum += sum_squares(four_at(head + i));
  }
  return inverse_root(sum / static_cast<float>(in.head_dim) + in.eps);
}

// The factor of a gate that halves will round.
__device__ __forceinline__ float opened(const Input& in, float z) {
  return in.gate_open ? z : quick_silu(z);
}
// `within`: where c is in its head.
__device__ __forceinline__ void apply_gates(const Input& in, const float* gates, const float* x,
                                            int c, int within, float4& v) {
  const float factor = head_factor(in, x, c, v);  // all lanes take part
  if (c >= in.cols) return;
  const float4 z = four_at(gates + c);
  scale_by(v, factor, four_at(in.weight + within));
  scale_by(v, 1.0f, {opened(in, z.x), opened(in, z.y), opened(in, z.z), opened(in, z.w)});
}

// Neighbouring lanes exchange what the other's piece needs: of eight columns the even ones stand in
// one piece and the odd ones in the next.
__device__ __forceinline__ void put(const HalfRows& to, int row, int c, float4 v) {
  const bool odd = threadIdx.x % 2 != 0;
  const std::uint32_t even_bits = two_halves(v.x, v.z), odd_bits = two_halves(v.y, v.w);
  const std::uint32_t came = shuffle_xor(odd ? even_bits : odd_bits, 1);
  if (c >= to.col_tiles * kTileCols) return;
  const int piece = c % kTileCols / 16 * 2 + (odd ? 1 : 0);
  __half* at = to.piece(row, piece) + c / kTileCols * kHalfTile + c % 16 / 8 * 4;
  *reinterpret_cast<uint2*>(at) = odd ? uint2{came, odd_bits} : uint2{even_bits, came};
}

// 1 / rms of a row, by all threads of a block.
__device__ __forceinline__ float row_factor(const Input& in, const float* x) {
  __shared__ float sums[kWarps];
  float sum = 0;
#pragma unroll 4
  for (int c = 4 * static_cast<int>(threadIdx.x); c < in.cols; c += kWarps * kStep)
    sum += sum_squares(four_at(x + c));
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return inverse_root(sum / static_cast<float>(in.cols) + in.eps);
}

// Grid: rows that are normed as a whole; else a row a warp by parts.
__global__ void __launch_bounds__(kWarps* kWarp)
    halve_kernel(const TESSERA_GRID_CONSTANT Input in, int rows,
                 const TESSERA_GRID_CONSTANT HalfRows out,
                 const TESSERA_GRID_CONSTANT HalfRows rest) {
  chain_wait();
  chain_trigger();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool normed = in.kind == InputKind::rms_norm;
  const bool gated = in.kind == InputKind::gated_rms;
  const int row = static_cast<int>(blockIdx.x) * (normed ? 1 : kWarps) + (normed ? 0 : warp);
  if (row >= rows) return;
  const float* x = input_row(in, row);
  const int id = in.row_ids == nullptr ? row : in.row_ids[row];
  const float* gates = in.gate + id * in.gate_stride;
  const int padded = out.col_tiles * kTileCols;
  const int first = (normed ? warp : static_cast<int>(blockIdx.y)) * kPart;
  const int end = normed ? padded : min(padded, first + kPart);
  const float factor = normed ? row_factor(in, x) : 1.0f;
  for (int begin = first; begin < end; begin += kWarps * kPart) {
    const int own = begin + 4 * lane;
    float4 v[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      v[i] = {0, 0, 0, 0};
      if (own + i * kStep < in.cols) v[i] = four_at(x + own + i * kStep);
    }
    int within = gated ? own % in.head_dim : 0;
    const int further = gated ? kStep % in.head_dim : 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int c = own + i * kStep;
      if (gated) apply_gates(in, gates, x, c, within, v[i]);
      within += within + further < in.head_dim ? further : further - in.head_dim;
      if (normed && c < in.cols) scale_by(v[i], factor, four_at(in.weight + c));
      put(out, row, c, v[i]);
      if (rest.at != nullptr) put(rest, row, c, half_rest(v[i]));
    }
  }
}

}  // namespace

GpuError halve_rows(const Launch& launch, const Input& in, int rows, const HalfRows& out,
                    const HalfRows& rest) {
  const bool normed = in.kind == InputKind::rms_norm;
  const int blocks = normed ? rows : (rows + kWarps - 1) / kWarps;
  const int parts = normed ? 1 : (out.col_tiles * kTileCols + kPart - 1) / kPart;
  return launch_kernel(launch, halve_kernel,
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)),
                       dim3(kWarps * kWarp), 0, in, rows, out, rest);
}

}  // namespace tessera::gpu
