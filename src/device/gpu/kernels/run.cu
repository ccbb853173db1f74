#include "device/gpu/kernels/run.h"

#include "device/gpu/kernels/run_attention.cuh"
#include "device/gpu/kernels/run_ffn.cuh"

namespace tessera::gpu {
namespace run {
namespace {

static_assert((kMostRunLayers + 1) % 2 == 0, "numbers are odd in odd layers");
constexpr std::size_t kSharedBytes = kRingBytes + sizeof(Shared);
static_assert(kSharedBytes <= 227 * 1024);

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void init(const Sequence& sequence) {
  Shared* s = shared();
  for (unsigned i = 0; i < kSlots; ++i) {
    barrier_init(shared_address(&s->full[i]), 1);
    barrier_init(shared_address(&s->empty[i]), kReaders);
  }
  barrier_init(shared_address(&s->chosen), kExperts / kWarp);
  barrier_init(shared_address(&s->weighed), 1);
  for (std::uint64_t& barrier : s->described) barrier_init(shared_address(&barrier), 1);
  barriers_ready();
  s->sequence = sequence;
}

// The weights, and the state, which nothing of this step writes but this run: ahead of what the
// kernels before this one leave.
__device__ __forceinline__ void feed_all(const RunArgs& args, int lane) {
  Shared* s = shared();
  Feeder feeder(lane);
  const auto* plans = reinterpret_cast<const LayerPlans*>(args.plans);
  feeder.describe(plans, 0);
#pragma unroll 1
  for (int i = 0; i < args.n_layers; ++i) {
    const int at = i % kLayersAhead;
    await_barrier(shared_address(&s->described[at]), (i / kLayersAhead) & 1);
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

// A part of a layer, whose description is s->layers[at]. Called: each part has all registers, and
// what they pass on is how many entries of the ring have been read.
template <void (*kPart)(Warp&, const Layer&)>
static __device__ __noinline__ unsigned part(Passed passed, int at, unsigned number,
                                             unsigned taken) {
  Warp w{Reader(taken), passed, this_warp(), this_lane(), number};
  kPart(w, shared()->layers[at]);
  return w.reader.taken();
}

__device__ __forceinline__ void read_all(const RunArgs& args) {
  chain_wait();
  Shared* s = shared();
  const Passed passed{args.passed};
  const unsigned run = *passed.run();
  const int i = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const bool worker = block < kWorkers, owns = worker && i < kTileRows;
  float* mine = args.hidden + block * kTileRows + i;
  // Not zero, as what was never passed.
  unsigned number = (run + 1) * (kMostRunLayers + 1);
  if (owns) {
    s->mine[i] = *mine;
    pass_value(passed.hidden() + block * kTileRows + i, s->mine[i], number);
  }
  unsigned taken = 0;
#pragma unroll 1
  for (int layer = 0; layer < args.n_layers; ++layer, ++number) {
    const int at = layer % kLayersAhead;
    await_barrier(shared_address(&s->described[at]), (layer / kLayersAhead) & 1);
    const bool attends = s->layers[at].attends != 0;
    taken = part<mixer_in>(passed, at, number, taken);
    if (attends) {
      attend(passed, at, number);
      if (worker) combine(passed, number);
    } else if (worker) {
      taken = part<delta>(passed, at, number, taken);
    }
    if (worker) taken = part<mixer_out>(passed, at, number, taken);
    taken = part<route>(passed, at, number, taken);
    taken = part<gate_and_up>(passed, at, number, taken);
    if (worker) taken = part<down>(passed, at, number, taken);
  }
  if (owns) *mine = s->mine[i];
  // Every block has contributed to what this one has read, and had read the number before.
  if (block == 0 && i == 0) *passed.run() = run + 1;
}

#endif

__global__ void __launch_bounds__(kThreads, 1)
    run_kernel(const TESSERA_GRID_CONSTANT RunArgs args) {
#ifdef TESSERA_GPU_WGMMA
  const int warp = this_warp();
  const int lane = this_lane();
  if (threadIdx.x == 0) init(args.sequences[0]);
  __syncthreads();
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
  if (args.n_layers < 1 || args.n_layers > kMostRunLayers)
    return TESSERA_GPU_API(ErrorInvalidValue);
  return launch_kernel(launch, run::run_kernel, dim3(run::kBlocks), dim3(run::kThreads),
                       run::kSharedBytes, args);
}

}  // namespace tessera::gpu
