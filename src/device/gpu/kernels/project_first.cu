// The projections into a mixer for 2 to 8 rows where no FFN has made them: a step's first ones. As
// the FFN's kernel makes those of the layer behind it (ffn_next.cuh).
//
// They are some 18 MB, 4 us at 4.6 TB/s, and took 13 for eight rows as other projections go: rows
// are rounded by a kernel of its own, and few weights are on their way before. Here all of them
// come to shared memory while the rows are made.
#include "device/gpu/kernels/ffn_feeder.cuh"
#include "device/gpu/kernels/ffn_next.cuh"
#include "device/gpu/kernels/run.h"

namespace tessera::gpu {
namespace together {
namespace {

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void project_rows(const TogetherArgs& args, int warp, int lane) {
  if (warp == kDecodeRows) describe_next(args, lane);
  chain_wait();
  // Not before: the mixer behind reads ahead what is older than this kernel.
  chain_trigger();
  // The launch's number is that of the FFN behind, which counts it: rows that were passed before
  // have another.
  reading() = {0, 0, *Passed{args.job.passed}.rows_run() + 1};
  const int row = warp * kRanks + static_cast<int>(blockIdx.x) % kRanks;
  const bool owns = has_tile() && row < args.job.rows;
  float column = 0;
  if (owns) column = args.ffn.hidden[row * kCols + cluster() * kGroup + lane];
  readers_sync();  // what describe_next() left
  if (owns) pass_columns(column, lane, next_of(row, cluster()));
  __syncwarp();
  project_next();
}

#endif

__global__ void __launch_bounds__(kThreads, 1)
    first_kernel(const TESSERA_GRID_CONSTANT TogetherArgs args) {
#ifdef TESSERA_GPU_WGMMA
  const int warp = this_warp(), lane = this_lane();
  if (threadIdx.x == 0) init(args);
  __syncthreads();
  if (warp == kReaders)
    Feeder(args, lane).feed_next();
  else
    project_rows(args, warp, lane);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // passed is given where has_runs() says yes
#endif
}

}  // namespace
}  // namespace together

GpuError project_first(const Launch& launch, const FfnArgs& ffn, const ProjectArgs& in) {
  using namespace together;
  if (!leads_to(ffn, in)) return TESSERA_GPU_API(ErrorInvalidValue);
  TogetherArgs args{.ffn = ffn, .next = next_args(in)};
  args.job.rows = in.rows;
  args.job.passed = ffn.passed;
  args.job.next_rows = run::passed_layout().rows_first;
  args.job.next_eps = in.input.eps;
  return launch_kernel(launch, first_kernel, dim3(run::kBlocks), dim3(run::kThreads),
                       kTogetherBytes, args);
}

}  // namespace tessera::gpu
