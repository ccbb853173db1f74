// What a block of ffn_together.cu's kernel is given and keeps in shared memory, which units of work
// it has, and how its warps that read go through the ring.
//
// Entries of the ring, in the order in which all warps go through them: of each unit of work gate,
// then up (a pair of tiles each); then of down the cluster's two tiles, of one or several experts
// an entry, half of the experts in each of its two blocks. Behind the FFN its room is taken anew:
// up to three pairs of tiles of the projections behind.
#pragma once

#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::together {

using namespace run;  // the shape, values that pass, products

inline constexpr int kRanks = 2;  // blocks of a cluster
inline constexpr int kTogetherRing = 161280, kMostSlots = 4;  // bytes, entries
inline constexpr int kEntriesUnderWay = 2;                    // see kUnderWay (run_ring.cuh)
inline constexpr int kRowsAtOnce = 4;  // whose sums of gate and up stand in shared memory
inline constexpr int kDenseExperts = 4;  // the dense branch's down takes the time of so many
inline constexpr int kBranches = kUsed + 1;  // the last one: dense
inline constexpr int kPairSupers = 2 * kSupers, kDownSupers = 2 * kRanks;
static_assert(kUsed >= kDenseExperts);  // DownShare: the second block's end is among the chosen
static_assert(kWorkers % kRanks == 0 && kBlocks % kRanks == 0 && kHidden == 2 * kSuperCols);
// Rows and slots of a Chosen; a warp a row, which are those that list the experts; a unit of work
// in every block, whichever experts are chosen.
static_assert(kDecodeRows == 8 && kUsed <= 8 && kDecodeRows == kExperts / kWarp &&
              kUsed * kPairs >= kBlocks - kPairs);

// A matrix of an expert or of the dense branch: its planes, each so many bytes a super-block.
struct Source {
  std::int64_t offset[4];
  std::int32_t bytes[4], before[4];  // of a super-block; of the planes before it
  BlockType type;
};

inline Source source_of(const Matrix& m) {
  const PlaneLayout at = plane_layout(m.type, m.rows, m.cols);
  Source source{.offset = {at.quants, at.extra, at.scales, at.supers},
                .bytes = {4 * at.quant_bytes, 4 * at.extra_bytes, 4 * at.scale_bytes,
                         at.super_bytes},
                .before = {},
                .type = m.type};
  for (int i = 1; i < 4; ++i) source.before[i] = source.before[i - 1] + source.bytes[i - 1];
  return source;
}

// The projections behind (ffn_next.cuh): matrices of 2,048 columns, pairs of tiles.
struct NextOutput {
  Source source;
  const std::byte* data;
  float* out;
  std::int64_t stride;
  int end;  // pairs of this matrix and the ones before
};
struct NextArgs {
  int n = 0;  // none
  NextOutput outputs[kMaxOutputs];
  const float* norm;
};
// Rounded rows, and a token's sums of 16 rows, so far apart that lanes meet different banks.
inline constexpr int kNextRowBytes = super_row_bytes(kSupers), kNextStride = 20;
inline constexpr int kNextSums = kDecodeRows * kNextStride;
// What the warps that read need of a pair, from shared memory: kernel arguments that nobody has
// read yet take most of a microsecond each.
struct NextPair {
  float* out;  // the first row's
  std::int64_t stride;
  BlockType type;
};
inline constexpr int kNextPairBytes = kPairSupers * super_bytes(BlockType::Q6_K);
static_assert(kMostNextPairs * kNextPairBytes <= kTogetherRing);

// What warps that read ask for again and again.
struct Job {
  std::int32_t rows, slots, slot_bytes;
  std::int32_t down_together;  // experts an entry
  BlockType gate, up, down, dense_gate, dense_up, dense_down;
  std::byte* passed;
  std::int64_t next_rows;  // where in `passed` the rows of the projections behind go
  float next_eps;
};

struct TogetherArgs {
  FfnArgs ffn;
  NextArgs next;
  Job job;
  Source gate, up, down, dense_gate, dense_up, dense_down;
  const std::byte* x;        // rounded rows
  const float* scalar_gate;  // [rows] logits
};

// An expert that rows chose: who did, a bit a row, and in which of their slots, three bits a row.
struct Chosen {
  std::int32_t id;
  std::uint32_t who;
  __device__ __forceinline__ unsigned rows() const { return who & 255u; }
  __device__ __forceinline__ int slot(int row) const { return who >> (8 + 3 * row) & 7; }
};

// How far a reading warp is: in registers it would be what every part saves.
struct Reading {
  std::int32_t slot;
  std::uint32_t phase;
  std::uint32_t number;  // of the launch, for run_values.cuh
};

// Behind the ring.
struct TogetherShared {
  alignas(16) std::uint64_t full[kMostSlots];
  std::uint64_t empty[kMostSlots], rows_here, chosen, next_here[kMostNextPairs];
  alignas(128) char x[kDecodeRows * rounded_row_bytes(kCols)];
  union {
    struct {
      Shares shares[2][kRowsAtOnce][2];  // of gate and of up
      alignas(16) char branch[kReaders][kSuperBytes];
      // Of every second row both tiles of the cluster.
      float branch_shares[kDecodeRows / kRanks][kBranches * 2][kRanks * kTileRows];
    };
    float next[kMostNextPairs][kReaders][kNextSums];
  };
  const std::byte* table[kExperts];
  std::uint32_t who[kExperts];
  Chosen list[kDecodeRows * kUsed];
  std::int32_t counts[kExperts / kWarp], n_chosen;
  Job job;
  Reading reading[kReaders];
  float weights[kDecodeRows][kBranches], factor[kDecodeRows];
  alignas(16) float next_weight[kGroup];  // of the norm behind, of the cluster's columns
  NextPair pairs[kMostNextPairs];
  int n_pairs;
};
inline constexpr std::size_t kTogetherBytes = kTogetherRing + sizeof(TogetherShared);
static_assert(kTogetherBytes <= 227 * 1024);

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ TogetherShared* memory() {
  return reinterpret_cast<TogetherShared*>(shared_bytes() + kTogetherRing);
}

// In the place of the FFN's rounded rows those of the projections behind, then their squares.
static_assert(kNextRowBytes + kSupers * 4 <= rounded_row_bytes(kCols));
__device__ __forceinline__ char* next_row(int row) {
  return memory()->x + row * kNextRowBytes;
}
__device__ __forceinline__ float* next_squares(int row) {
  return reinterpret_cast<float*>(next_row(kDecodeRows)) + row * kSupers;
}

// Where a warp is in the ring.
struct Turn {
  int slot = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void next(int slots) {
    if (++slot == slots) slot = 0, phase ^= 1;
  }
};

// Units of work: 32 hidden activations of the dense branch, which the first kPairs blocks have
// before the experts are known, then those of the experts, which all share. A dense unit takes the
// time of several, so that these blocks come late to the others. Blocks that have no tile of the
// residual count first.
struct Units {
  int place, first, shared;  // the block's place; of `shared` units, those of all blocks begin
  __device__ __forceinline__ explicit Units(int rows) {
    const int rounds = 1 + rows / 4;
    place = (static_cast<int>(blockIdx.x) + kHelpers) % kBlocks;
    shared = rounds * (kBlocks - kPairs);
    first = has_dense() ? shared + place : place - kPairs;
  }
  __device__ __forceinline__ bool has_dense() const { return place < kPairs; }
  __device__ __forceinline__ int next(int unit) const {
    if (unit >= shared) return unit + kBlocks;
    const int next = unit + kBlocks - kPairs;
    return next < shared ? next : shared + place;
  }
};
// The pairs of tiles of the projections behind that a block has: each n-th.
struct NextUnit {
  const NextOutput& output;
  int pair;  // of its matrix
};
struct NextUnits {
  const NextArgs& args;
  int place, n;
  __device__ __forceinline__ explicit NextUnits(const NextArgs& next)
      : args(next), place((static_cast<int>(blockIdx.x) + kHelpers) % kBlocks),
        n(next.n == 0 ? 0 : (next.outputs[next.n - 1].end - place + kBlocks - 1) / kBlocks) {}
  __device__ __forceinline__ NextUnit of(int i) const {
    const int pair = place + i * kBlocks;
    int at = 0, before = 0;
    while (pair >= args.outputs[at].end) before = args.outputs[at++].end;
    return {args.outputs[at], pair - before};
  }
};
__device__ __forceinline__ int cluster() {
  return static_cast<int>(blockIdx.x) / kRanks;
}
__device__ __forceinline__ bool has_tile() {
  return static_cast<int>(blockIdx.x) < kWorkers;
}
// Of the n experts that were chosen those whose down the block has. The cluster's first block has
// the dense branch's, too, and fewer experts.
struct DownShare {
  int first, end;
  __device__ __forceinline__ explicit DownShare(int n) {
    const int of_second = (n + kDenseExperts + 1) / kRanks;
    const bool second = blockIdx.x % kRanks != 0;
    first = second ? 0 : of_second, end = second ? of_second : n;
  }
};
__device__ __forceinline__ bool has_dense_down() {
  return blockIdx.x % kRanks == 0;
}

// What a block begins with, by one thread; wants a barrier.
__device__ __forceinline__ void init(const TogetherArgs& args) {
  TogetherShared* s = memory();
  s->job = args.job;
  for (int i = 0; i < args.job.slots; ++i) {
    barrier_init(shared_address(&s->full[i]), 1);
    barrier_init(shared_address(&s->empty[i]), kReaders);
  }
  for (std::uint64_t& barrier : s->next_here) barrier_init(shared_address(&barrier), 1);
  barrier_init(shared_address(&s->rows_here), 1);
  barrier_init(shared_address(&s->chosen), kExperts / kWarp);
  barriers_ready();
}

// --- Reading ---

__device__ __forceinline__ Reading& reading() {
  return memory()->reading[this_warp()];
}
// The entry that comes `later`, when it is there: its address.
__device__ __forceinline__ std::uint32_t take(int later = 0) {
  const Reading& p = reading();
  const int slots = memory()->job.slots;
  int slot = p.slot + later;
  unsigned phase = p.phase;
  if (slot >= slots) slot -= slots, phase ^= 1;
  await_barrier(shared_address(&memory()->full[slot]), phase);
  return address_of(slot * memory()->job.slot_bytes);
}
// By the whole warp: the next entry's room is given back.
__device__ __forceinline__ void give() {
  Reading& p = reading();
  const int slot = p.slot;
  const unsigned phase = p.phase;
  __syncwarp();  // all lanes have read it
  if (this_lane() == 0) arrive(shared_address(&memory()->empty[slot]));
  const bool last = slot + 1 == memory()->job.slots;
  p.slot = last ? 0 : slot + 1;
  if (last) p.phase = phase ^ 1;
}
// Of hidden activations: a row's slot, in the last place the dense branch.
__device__ __forceinline__ Record* hidden_of(int row, int slot) {
  return Passed{memory()->job.passed}.rows_h() + (row * kBranches + slot) * (kPairs * 4);
}
// Who chose an expert, or of the dense branch every row.
__device__ __forceinline__ unsigned all_rows() {
  return (1u << memory()->job.rows) - 1;
}

#endif

}  // namespace tessera::gpu::together
