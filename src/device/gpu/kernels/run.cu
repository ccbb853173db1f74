#include "device/gpu/kernels/run.h"

#include "device/gpu/kernels/run_attention.cuh"
#include "device/gpu/kernels/run_ffn.cuh"

namespace tessera::gpu {
namespace run {
namespace {

static_assert((kMostRunLayers + 1) % 2 == 0, "numbers are odd in odd layers");
static_assert((std::uint64_t{kMostRuns} + 1) * (kMostRunLayers + 1) == std::uint64_t{1} << 32);
constexpr std::size_t kSharedBytes = kRingBytes + sizeof(Shared);
static_assert(kSharedBytes <= 227 * 1024);
// sum_values() reads a whole page, and forgets what is behind the row: a page's entry at the ring's
// end may be that much shorter.
static_assert(sizeof(Shared) >= 3 * kSixteenBytes);

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void init(const RunArgs& args) {
  Shared* s = shared();
  for (unsigned i = 0; i < kSlots; ++i) {
    barrier_init(shared_address(&s->full[i]), 1);
    barrier_init(shared_address(&s->empty[i]), kReaders);
  }
  barrier_init(shared_address(&s->chosen), kExperts / kWarp);
  for (std::uint64_t& barrier : s->described) barrier_init(shared_address(&barrier), 1);
  for (std::uint64_t& barrier : s->left) barrier_init(shared_address(&barrier), kReaders);
  barriers_ready();
  s->sequence = args.sequences[args.row];
  s->row_number = args.row;
}

// The weights, and the state and earlier tokens' keys and values, which nothing of this step writes
// but this run: ahead of what the kernels before this one leave.
__device__ __forceinline__ void feed_all(const RunArgs& args, int lane) {
  Shared* s = shared();
  Feeder feeder(args, lane);
  const auto* plans = reinterpret_cast<const LayerPlans*>(args.plans);
  feeder.describe(plans, 0);
#pragma unroll 1
  for (int i = 0; i < args.n_layers; ++i) {
    const int at = i % kLayersAhead;
    await_barrier(shared_address(&s->described[at]), (i / kLayersAhead) & 1);
    __syncwarp();  // all lanes have asked for what bases of the layer before say
    if (lane < kTaps) {
      // Bases of the sequence's state, then of the rows before this one, oldest first.
      const Layer& l = s->layers[at];
      const int row = lane == 0 ? 0 : (s->sequence.first_position + lane) % kTaps;
      const std::int64_t floats = s->sequence.slot * l.slot_stride + row * l.channels;
      s->base[kState + lane] = reinterpret_cast<const std::byte*>(floats * 4);
    }
    if (i == 0 && lane == kTaps) s->base[kAbsolute] = nullptr;
    __syncwarp();
    if (i + 1 < args.n_layers) feeder.describe(plans, i + 1);
    feeder.feed(i);
  }
}

// A part of a layer. Called: each part has all registers. Lanes need not be in step here, since a
// part has them wait for each other (Reader::release) between what they read of their progress and
// what they write, which is the same for all.
template <void (*kPart)(Warp&, const Layer&)>
static __device__ __noinline__ void part(Passed passed) {
  Progress& p = progress();
  Warp w{Reader(p.taken), passed, this_warp(), this_lane(), p.number};
  kPart(w, this_layer());
  p.taken = w.reader.taken();
}

__device__ __forceinline__ bool is_worker() {
  return static_cast<int>(blockIdx.x) < kWorkers;
}
// The dense branch's.
__device__ __forceinline__ bool has_scalar_gate() {
  return blockIdx.x == kWorkers;
}
// By this thread, a value of the block's tile of the residual.
__device__ __forceinline__ bool owns_value() {
  return is_worker() && static_cast<int>(threadIdx.x) < kTileRows;
}

__device__ __forceinline__ void read_layer(const Passed& passed) {
  const Progress& p = progress();
  await_barrier(shared_address(&shared()->described[p.layer % kLayersAhead]),
                (p.layer / kLayersAhead) & 1);
  const bool attends = this_layer().attends != 0, worker = is_worker();
  if (worker)
    part<mixer_in>(passed);
  else if (!attends)
    part<delta_gates>(passed);
  if (attends) attend(passed);
  if (worker) {
    if (attends)
      combine(passed);
    else
      part<delta>(passed);
    part<mixer_out>(passed);
  }
  if (worker || has_scalar_gate()) part<route>(passed);
  if (!worker) return;
  part<gate_and_up>(passed);
  part<down>(passed);
}

// The block's tile of a row that another GPU hands over. All of the block's warps wait, so that
// none loses its patience with a row to come; blocks without a tile look for one of the first.
// Called: what is kept in registers over the layers is not to count these.
static __device__ __noinline__ void take_tile(const std::byte* taken, unsigned number,
                                              std::int64_t most_ns) {
  const unsigned column = (blockIdx.x * kTileRows + threadIdx.x) % kCols;
  if (threadIdx.x < kTileRows)
    shared()->mine[threadIdx.x] =
        take_value(reinterpret_cast<const Handed*>(taken) + column, number, most_ns);
  readers_sync();
}
static __device__ __noinline__ void hand_tile(std::byte* handed, unsigned number) {
  const unsigned column = blockIdx.x * kTileRows + threadIdx.x;
  if (owns_value())
    hand_value(reinterpret_cast<Handed*>(handed) + column, shared()->mine[threadIdx.x], number);
}

__device__ __forceinline__ void read_all(const RunArgs& args) {
  chain_wait();
  const Passed passed{args.passed};
  const auto own = [&] {
    return args.hidden + args.row * kCols + blockIdx.x * kTileRows + threadIdx.x;
  };
  if (args.taken != nullptr) take_tile(args.taken, args.number, args.most_ns);
  // Not zero, as what was never passed: the host clears all ahead of that.
  const unsigned number = (*passed.run() + 1) * (kMostRunLayers + 1);
  if (owns_value()) {
    if (args.taken == nullptr) shared()->mine[threadIdx.x] = *own();
    pass_value(passed.hidden() + own_place(), shared()->mine[threadIdx.x], number);
  }
  Progress& p = progress();
  p = {0, number, 0};
  while (p.layer < args.n_layers) {
    read_layer(passed);
    const Progress now = p;
    __syncwarp();  // all lanes have read what all then write: down() leaves a warp in two parts
    if (this_lane() == 0) arrive(shared_address(&shared()->left[now.layer % kLayersAhead]));
    p = {now.layer + 1, now.number + 1, now.taken};
    __syncwarp();
  }
  if (args.handed != nullptr) hand_tile(args.handed, args.number);
  if (owns_value()) *own() = shared()->mine[threadIdx.x];
  // Every block that uses the number has contributed to what this one has read.
  if (blockIdx.x == 0 && threadIdx.x == 0) *passed.run() = p.number / (kMostRunLayers + 1);
}

#endif

__global__ void __launch_bounds__(kThreads, 1)
    run_kernel(const TESSERA_GRID_CONSTANT RunArgs args) {
#ifdef TESSERA_GPU_WGMMA
  const int warp = this_warp();
  const int lane = this_lane();
  if (threadIdx.x == 0) init(args);
  __syncthreads();
  chain_trigger();  // what follows finds room when blocks of this kernel end
  if (warp == kReaders)
    feed_all(args, lane);
  else
    read_all(args);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // has_runs() says no
#endif
}

}  // namespace
}  // namespace run

bool has_runs(const Launch& launch) {
#if defined(TESSERA_GPU_HIP) || defined(TESSERA_GPU_EMULATED)
  (void)launch;
  return false;
#else
  cudaFuncAttributes attributes{};
  return launch.chained && launch.multiprocessors >= run::kBlocks &&
         shared_limit(launch) >= run::kSharedBytes &&
         cudaFuncGetAttributes(&attributes, run::run_kernel) == cudaSuccess &&
         attributes.binaryVersion == 90;
#endif
}

GpuError run_layers(const Launch& launch, const RunArgs& args) {
  if (args.n_layers < 1 || args.n_layers > kMostRunLayers || args.row < 0)
    return TESSERA_GPU_API(ErrorInvalidValue);
  return launch_kernel(launch, run::run_kernel, dim3(run::kBlocks), dim3(run::kThreads),
                       run::kSharedBytes, args);
}

}  // namespace tessera::gpu
