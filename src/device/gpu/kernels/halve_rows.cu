// Rows of f32 as rows of halves: four columns a lane and 128 a warp at a time, in registers.
//
// A warp takes a row that is normed as a whole; else 512 columns of one. Floor: a row's bytes in
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
  return 1.0f / sqrtf(sum / static_cast<float>(in.head_dim) + in.eps);
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

// Grid: rows by parts; of normed rows one part, which ends with the row.
__global__ void __launch_bounds__(kWarps* kWarp)
    halve_kernel(const TESSERA_GRID_CONSTANT Input in, int rows,
                 const TESSERA_GRID_CONSTANT HalfRows out,
                 const TESSERA_GRID_CONSTANT HalfRows rest) {
  chain_wait();
  chain_trigger();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, padded = out.col_tiles * kTileCols;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const float* x = input_row(in, row);
  const bool normed = in.kind == InputKind::rms_norm;
  const bool gated = in.kind == InputKind::gated_rms;
  const int id = in.row_ids == nullptr ? row : in.row_ids[row];
  const float* gates = in.gate + id * in.gate_stride;
  const int first = static_cast<int>(blockIdx.y) * kPart;
  const int end = normed ? padded : min(padded, first + kPart);
  float factor = 1.0f;
  for (int begin = first; begin < end; begin += kPart) {
    const int own = begin + 4 * lane;
    float4 v[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      v[i] = {0, 0, 0, 0};
      if (own + i * kStep < in.cols) v[i] = four_at(x + own + i * kStep);
    }
    if (normed && begin == first) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum += sum_squares(v[i]);
#pragma unroll 8
      for (int c = kPart + 4 * lane; c < in.cols; c += kStep) sum += sum_squares(four_at(x + c));
      factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(in.cols) + in.eps);
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
  const int parts =
      in.kind == InputKind::rms_norm ? 1 : (out.col_tiles * kTileCols + kPart - 1) / kPart;
  return launch_kernel(
      launch, halve_kernel,
      dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps), static_cast<unsigned>(parts)),
      dim3(kWarps * kWarp), 0, in, rows, out, rest);
}

}  // namespace tessera::gpu
