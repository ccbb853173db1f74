// Plain matrices (routers, the delta net's gates) times 2 to 8 rows, and the rows rounded on the
// way for the quantised products behind.
//
// A cluster of eight blocks takes 16 rows of weights, each block an eighth of their columns: of
// rows of eight super-blocks one, of 16 to 24 two or three. A block reads an eighth of the tokens'
// rows, and its warps norm a token each, at the same time. The blocks' sums meet in shared memory,
// a unit of kPlainRows in each block, and are added as the warps' shares of a plain unit
// (project_supers.cuh), which stay the way of other rows and of devices without clusters. Floor:
// the launch; a router of 256 x 2048 is 2 MB.
#include "device/gpu/kernels/bulk_copy.cuh"
#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {
namespace {

constexpr int kRanks = 8, kWarps = 8;
constexpr int kMostSupers = 3 * kRanks;  // of a row
static_assert(kWarps == kDecodeRows);

// Of shares of a unit's columns a block has kEach, which are kSupers super-blocks at most.
template <int kEach>
struct Room {
  static constexpr int kSupers = kEach == 1 ? 1 : kMostSupers / kRanks;
  float4 x[kDecodeRows][kSupers][2][kWarp];  // the tokens' columns, normed but for 1 / rms
  float parts[kRanks * kEach][kPlainRows * kDecodeRows];
  float squares[kRanks * kEach][kDecodeRows];
};

#ifdef TESSERA_GPU_WGMMA
template <int kEach>
struct Columns {
  int first, n, super[kEach + 1];  // shares; where each begins, from the block's first
  __device__ __forceinline__ Columns(const SuperArgs& args, int rank) {
    constexpr int kShares = kRanks * kEach;
    first = args.supers * (rank * kEach) / kShares;
#pragma unroll
    for (int i = 0; i <= kEach; ++i)
      super[i] = args.supers * (rank * kEach + i) / kShares - first;
    n = super[kEach];
  }
};

// The unit's sums of this block's columns, to the block that adds them up.
template <int kEach>
__device__ __forceinline__ void send_sums(const Eight (&w)[Room<kEach>::kSupers][kPlainRows],
                                          const Columns<kEach>& columns, Room<kEach>& room,
                                          int rank, int warp, int lane) {
#pragma unroll
  for (int share = 0; share < kEach; ++share) {
    float of[kPlainRows * kDecodeRows] = {};
#pragma unroll
    for (int i = 0; i < Room<kEach>::kSupers; ++i) {
      if (i < columns.super[share] || i >= columns.super[share + 1]) continue;
#pragma unroll
      for (int j = 0; j < kDecodeRows; ++j) {
        const Eight x = {room.x[j][i][0][lane], room.x[j][i][1][lane]};
#pragma unroll
        for (int r = 0; r < kPlainRows; ++r)
          of[r * kDecodeRows + j] = dot_eight(w[i][r], x, of[r * kDecodeRows + j]);
      }
    }
    constexpr int kLanes = kWarp / (kPlainRows * kDecodeRows);
    const float all = spread_sums(of, lane);
    if (share == 0) cluster_await();
    if (lane % kLanes == 0) store_in(warp, &room.parts[rank * kEach + share][lane / kLanes], all);
  }
}

template <int kEach>
__device__ __forceinline__ void finish_unit(const SuperArgs& args, const Room<kEach>& room,
                                            int unit, int first, int n) {
  const int r = static_cast<int>(threadIdx.x) / kDecodeRows,
            column = static_cast<int>(threadIdx.x) % kDecodeRows;
  if (unit >= args.plain_units || r >= kPlainRows || column >= n) return;
  const Place at = plain_place_of(args, unit);
  const int row = at.tile * kPlainRows + r;
  if (row >= at.segment->w.rows) return;
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kRanks * kEach; ++i) {
    sum += room.parts[i][r * kDecodeRows + column];
    squares += room.squares[i][column];
  }
  sum = __fmul_rn(sum, inverse_root(squares / static_cast<float>(args.in.cols) + args.in.eps));
  float* to = at.segment->out + (first + column) * at.segment->stride + row;
  *to = at.segment->add ? *to + sum : sum;
}
#endif

template <int kEach>
__global__ void TESSERA_CLUSTER(kRanks) __launch_bounds__(kWarps* kWarp, kEach == 1 ? 2 : 1)
    plain_rows_kernel(const TESSERA_GRID_CONSTANT SuperArgs args) {
#ifdef TESSERA_GPU_WGMMA
  constexpr int kSupers = Room<kEach>::kSupers;
  __shared__ Room<kEach> room;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x) / kRanks;
  const int clusters = static_cast<int>(gridDim.x) / kRanks;
  const int first = static_cast<int>(blockIdx.y) * kDecodeRows;
  const int n = min(kDecodeRows, args.rows - first);
  cluster_arrive();
  const Columns<kEach> columns(args, rank);
  const int unit = cluster * kWarps + warp;
  Eight w[kSupers][kPlainRows] = {};
  if (unit < args.plain_units) {
    const Place at = plain_place_of(args, unit);
#pragma unroll
    for (int i = 0; i < kSupers; ++i)
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r)
        if (i < columns.n)
          w[i][r] =
              plain_eight(at.segment->w, at.tile * kPlainRows + r, columns.first + i, lane);
  }
  Eight weight[kSupers];
#pragma unroll
  for (int i = 0; i < kSupers; ++i)
    if (i < columns.n) weight[i] = super_weight(args.in, columns.first + i, lane);
  chain_wait();
  chain_trigger();
  Eight x[kSupers] = {};
  float squares[kSupers] = {};
  if (warp < n) {
    InputSuper read[kSupers];
#pragma unroll
    for (int i = 0; i < kSupers; ++i)
      if (i < columns.n) read[i] = load_input(args.in, first + warp, columns.first + i, lane);
#pragma unroll
    for (int i = 0; i < kSupers; ++i) {
      if (i >= columns.n) break;
      x[i] = normed_input(args.in, read[i], weight[i], squares[i]);
      squares[i] = sum_of_groups(squares[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSupers; ++i) {
    room.x[warp][i][0][lane] = x[i].low;
    room.x[warp][i][1][lane] = x[i].high;
  }
  __syncthreads();
  send_sums<kEach>(w, columns, room, rank, warp, lane);
#pragma unroll
  for (int share = 0; share < kEach; ++share) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSupers; ++i)
      if (i >= columns.super[share] && i < columns.super[share + 1]) sum += squares[i];
    if (lane < kRanks) store_in(lane, &room.squares[rank * kEach + share][warp], sum);
  }
  __syncwarp();
  cluster_arrive();
  if (args.rounded != nullptr && warp < n && warp % clusters == cluster) {
    char* to = rounded_row(args.rounded, args.in.cols, first + warp);
#pragma unroll
    for (int i = 0; i < kSupers; ++i) {
      if (i >= columns.n) break;
      round_super(x[i], 1.0f, lane, to + (columns.first + i) * kSuperBytes);
      if (lane == 0) rounded_squares(to, args.in.cols)[columns.first + i] = squares[i];
    }
  }
  __syncwarp();
  cluster_await();
  finish_unit<kEach>(args, room, cluster * kWarps + rank, first, n);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // has_plain_rows() says no
#endif
}

}  // namespace

bool has_plain_rows(const Launch& launch, const SuperArgs& args, int shares) {
  const bool one = shares == kRanks && args.supers == kRanks;
  const bool two =
      shares == 2 * kRanks && args.supers >= 2 * kRanks && args.supers <= kMostSupers;
  return launch.gemm && args.rows > 1 && args.plain_units > 0 && (one || two) &&
         args.in.kind == InputKind::rms_norm;
}

GpuError plain_rows(const Launch& launch, const SuperArgs& args) {
  const int clusters = (args.plain_units + kWarps - 1) / kWarps;
  return launch_kernel(launch,
                       args.supers == kRanks ? plain_rows_kernel<1> : plain_rows_kernel<2>,
                       dim3(static_cast<unsigned>(clusters * kRanks),
                            static_cast<unsigned>((args.rows + kDecodeRows - 1) / kDecodeRows)),
                       dim3(kWarps * kWarp), 0, args);
}

}  // namespace tessera::gpu
