// Plain matrices (routers, the delta net's gates) times 2 to 8 rows of eight super-blocks, and the
// rows rounded on the way for the quantised products behind.
//
// A cluster of eight blocks takes 16 rows of weights, each block one super-block of their columns:
// a block reads 8 KB of the tokens' rows instead of all 64 KB, and its warps norm a token each, at
// the same time. The blocks' sums meet in shared memory, a unit of kPlainRows in each block, and
// are added in the order of the super-blocks, as by the plain units of project_supers.cuh, which
// stay the way of other rows and of devices without clusters. Floor: the launch; a router of 256 x
// 2048 is 2 MB.
#include "device/gpu/kernels/bulk_copy.cuh"
#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {
namespace {

constexpr int kRanks = 8, kWarps = 8;
static_assert(kWarps == kDecodeRows);

struct Room {
  float4 x[kDecodeRows][2][kWarp];  // the tokens' columns, normed but for 1 / rms
  float parts[kRanks][kPlainRows * kDecodeRows];
  float squares[kRanks][kDecodeRows];
};

#ifdef TESSERA_GPU_WGMMA
// The unit's sums of this block's columns, to the block that adds them up.
__device__ __forceinline__ void send_sums(const Eight (&w)[kPlainRows], Room& room, int rank,
                                          int warp, int lane) {
  float of[kPlainRows * kDecodeRows] = {};
#pragma unroll
  for (int j = 0; j < kDecodeRows; ++j) {
    const Eight x = {room.x[j][0][lane], room.x[j][1][lane]};
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r)
      of[r * kDecodeRows + j] = dot_eight(w[r], x, of[r * kDecodeRows + j]);
  }
  constexpr int kLanes = kWarp / (kPlainRows * kDecodeRows);
  const float all = spread_sums(of, lane);
  cluster_await();
  if (lane % kLanes == 0) store_in(warp, &room.parts[rank][lane / kLanes], all);
}

__device__ __forceinline__ void finish_unit(const SuperArgs& args, const Room& room, int unit,
                                            int first, int n) {
  const int r = static_cast<int>(threadIdx.x) / kDecodeRows,
            column = static_cast<int>(threadIdx.x) % kDecodeRows;
  if (unit >= args.plain_units || r >= kPlainRows || column >= n) return;
  const Place at = plain_place_of(args, unit);
  const int row = at.tile * kPlainRows + r;
  if (row >= at.segment->w.rows) return;
  float sum = 0, squares = 0;
  for (int i = 0; i < kRanks; ++i) {
    sum += room.parts[i][r * kDecodeRows + column];
    squares += room.squares[i][column];
  }
  sum *= inverse_root(squares / static_cast<float>(args.in.cols) + args.in.eps);
  float* to = at.segment->out + (first + column) * at.segment->stride + row;
  *to = at.segment->add ? *to + sum : sum;
}
#endif

__global__ void TESSERA_CLUSTER(kRanks) __launch_bounds__(kWarps* kWarp, 2)
    plain_rows_kernel(const TESSERA_GRID_CONSTANT SuperArgs args) {
#ifdef TESSERA_GPU_WGMMA
  __shared__ Room room;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x) / kRanks;
  const int clusters = static_cast<int>(gridDim.x) / kRanks;
  const int first = static_cast<int>(blockIdx.y) * kDecodeRows;
  const int n = min(kDecodeRows, args.rows - first);
  cluster_arrive();
  const int unit = cluster * kWarps + warp;
  Eight w[kPlainRows] = {};
  if (unit < args.plain_units) {
    const Place at = plain_place_of(args, unit);
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r)
      w[r] = plain_eight(at.segment->w, at.tile * kPlainRows + r, rank, lane);
  }
  const Eight weight = super_weight(args.in, rank, lane);
  chain_wait();
  chain_trigger();
  Eight x{};
  float squares = 0;
  if (warp < n) {
    x = normed_input(args.in, load_input(args.in, first + warp, rank, lane), weight, squares);
    squares = sum_of_groups(squares);
  }
  room.x[warp][0][lane] = x.low;
  room.x[warp][1][lane] = x.high;
  __syncthreads();
  send_sums(w, room, rank, warp, lane);
  if (lane < kRanks) store_in(lane, &room.squares[rank][warp], squares);
  __syncwarp();
  cluster_arrive();
  if (args.rounded != nullptr && warp < n && warp % clusters == cluster) {
    char* to = rounded_row(args.rounded, args.in.cols, first + warp);
    round_super(x, 1.0f, lane, to + rank * kSuperBytes);
    if (lane == 0) rounded_squares(to, args.in.cols)[rank] = squares;
  }
  __syncwarp();
  cluster_await();
  finish_unit(args, room, cluster * kWarps + rank, first, n);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // has_plain_rows() says no
#endif
}

}  // namespace

bool has_plain_rows(const Launch& launch, const SuperArgs& args) {
  return launch.gemm && args.rows > 1 && args.plain_units > 0 && args.supers == kRanks &&
         args.in.kind == InputKind::rms_norm;
}

GpuError plain_rows(const Launch& launch, const SuperArgs& args) {
  const int clusters = (args.plain_units + kWarps - 1) / kWarps;
  return launch_kernel(launch, plain_rows_kernel,
                       dim3(static_cast<unsigned>(clusters * kRanks),
                            static_cast<unsigned>((args.rows + kDecodeRows - 1) / kDecodeRows)),
                       dim3(kWarps * kWarp), 0, args);
}

}  // namespace tessera::gpu
