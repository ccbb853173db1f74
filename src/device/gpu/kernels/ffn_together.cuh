// What a block of ffn_together.cu's kernel keeps in shared memory, the choice of experts for all
// rows, and the warp that asks for the weights.
//
// Entries of the ring, in the order in which all warps go through them: of each unit of work gate,
// then up (a pair of tiles each); then of down the cluster's two tiles, of one or several experts
// an entry, half of the experts in each of its two blocks.
#pragma once

#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::together {

using namespace run;  // the shape, values that pass, products

inline constexpr int kRanks = 2;  // blocks of a cluster
inline constexpr int kTogetherRing = 161280, kMostSlots = 4;  // bytes, entries
inline constexpr int kEntriesUnderWay = 2;                    // see kUnderWay (run_ring.cuh)
inline constexpr int kRowsAtOnce = 4;  // whose sums of gate and up stand in shared memory
inline constexpr int kBranches = kUsed + 1;  // the last one: dense
inline constexpr int kPairSupers = 2 * kSupers, kDownSupers = 2 * kRanks;
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
struct Progress {
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
  Progress progress[kReaders];
  float weights[kDecodeRows][kBranches], factor[kDecodeRows];
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
// Of the experts that were chosen the block's: the first; then every second.
__device__ __forceinline__ int first_of_down() {
  return 1 - static_cast<int>(blockIdx.x) % kRanks;
}
__device__ __forceinline__ bool has_dense_down() {
  return blockIdx.x % kRanks == 0;
}

// --- The choice ---

// A row's, by one warp: eight times the greatest logit that is left, of equal ones the lower id; a
// lane has every 32nd. A block does this for all rows, so the code is short: it runs once.
struct Choice {
  float logits[kExperts / kWarp];
  std::uint32_t own = 0;  // in the first lanes, of what was chosen: the logit's order
  std::int32_t id = 0;
};
__device__ __forceinline__ Choice choose_row(const float* logits, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kEach = kExperts / kWarp;
  Choice c;
  std::uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) c.logits[i] = logits[i * kWarp + lane];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float x = c.logits[i];
    c.logits[i] = usable_logit(x);
    keys[i] = ordered(c.logits[i]);
  }
#pragma unroll 1
  for (int rank = 0; rank < kUsed; ++rank) {
    std::uint32_t top = keys[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) top = max(top, keys[i]);
    top = __reduce_max_sync(kAll, top);
    int id = kExperts;
#pragma unroll
    for (int i = kEach; i-- > 0;) id = keys[i] == top ? i * kWarp + lane : id;
    id = static_cast<int>(__reduce_min_sync(kAll, static_cast<unsigned>(id)));
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = id == i * kWarp + lane ? 0 : keys[i];
    if (lane == rank) c.own = top, c.id = id;
  }
  return c;
}

// The chosen experts, each once; by the first eight warps.
__device__ __forceinline__ void list_chosen(int warp, int lane) {
  TogetherShared* s = memory();
  const int e = static_cast<int>(threadIdx.x);
  const std::uint32_t who = s->who[e];
  const unsigned taken = __ballot_sync(0xffffffffu, who != 0);
  if (lane == 0) s->counts[warp] = __popc(taken);
  row_warps_sync();
  int before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kExperts / kWarp; ++i) {
    before += i < warp ? s->counts[i] : 0;
    all += s->counts[i];
  }
  if (who != 0) s->list[before + __popc(taken & ((1u << lane) - 1))] = {e, who};
  if (e == 0) s->n_chosen = all;
  __syncwarp();
  if (lane == 0) arrive(shared_address(&s->chosen));
}

// The weights of what a row chose, as weigh_experts() has them.
__device__ __forceinline__ void weigh(const MoeArgs& moe, const Choice& c, int row, int lane) {
  const auto logit = [](std::uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
  };
  const float top = logit(shuffle(c.own, 0));
  float all = 0;
#pragma unroll
  for (const float x : c.logits) all += expf(x - top);
  all = top == -INFINITY ? 0.0f : warp_sum(all);
  const bool mine = lane < kUsed;
  float weight = mine && all > 0 ? expf(logit(c.own) - top) / all : 0.0f;
  const float sum = warp_sum(weight);
  weight = scaled_weight(weight, sum, moe.router.weight_scale, moe.router.normalize);
  if (!mine) return;
  memory()->weights[row][lane] = weight;
  if (blockIdx.x == 0) {
    moe.ids[row * kUsed + lane] = c.id;
    moe.weights[row * kUsed + lane] = weight;
  }
}

// By the first eight warps, a row each.
__device__ __forceinline__ void choose(const FfnArgs& ffn, int warp, int lane) {
  const bool mine = warp < ffn.rows;
  Choice c;
  if (mine) {
    c = choose_row(ffn.moe.logits + warp * kExperts, lane);
    if (lane < kUsed)
      atomicOr(&memory()->who[c.id], 1u << warp | static_cast<unsigned>(lane) << (8 + 3 * warp));
  }
  row_warps_sync();
  list_chosen(warp, lane);
  if (mine) weigh(ffn.moe, c, warp, lane);
}

// --- Reading ---

__device__ __forceinline__ Progress& progress() {
  return memory()->progress[this_warp()];
}
// The entry that comes `later`, when it is there: its address. Then, by the whole warp, the next
// one's room is given back.
__device__ __forceinline__ std::uint32_t take(int later = 0) {
  const Progress& p = progress();
  const int slots = memory()->job.slots;
  int slot = p.slot + later;
  unsigned phase = p.phase;
  if (slot >= slots) slot -= slots, phase ^= 1;
  await_barrier(shared_address(&memory()->full[slot]), phase);
  return address_of(slot * memory()->job.slot_bytes);
}
__device__ __forceinline__ void give() {
  Progress& p = progress();
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

// --- The feeder ---

class Feeder {
 public:
  __device__ Feeder(const TogetherArgs& args, int lane) : args_(args), lane_(lane) {}

  __device__ __forceinline__ void feed() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const Units units(ffn.rows);
    // What no kernel of the step writes, ahead of the wait for the one before.
    if (units.has_dense()) {
      pair(args_.dense_gate, ffn.dense.gate.data, units.place);
      pair(args_.dense_up, ffn.dense.up.data, units.place);
    }
    chain_wait();
    if (lane_ == 0) {
      const int bytes = ffn.rows * static_cast<int>(rounded_row_bytes(kCols));
      barrier_expect(shared_address(&s->rows_here), bytes);
      bulk_copy(shared_address(s->x), args_.x, bytes, shared_address(&s->rows_here));
    }
    __syncwarp();
    await_barrier(shared_address(&s->chosen), 0);
    const int n = s->n_chosen * kPairs;
    for (int unit = units.first; unit < n; unit = units.next(unit)) {
      const std::byte* expert = s->table[s->list[unit / kPairs].id];
      pair(args_.gate, expert, unit % kPairs);
      pair(args_.up, expert + ffn.moe.shape.up_offset, unit % kPairs);
    }
    if (has_tile()) feed_down();
  }
  // All of the ring's room, when nobody reads there any more.
  __device__ __forceinline__ void feed_next() {
    TogetherShared* s = memory();
    const NextUnits units(args_.next);
#pragma unroll 1
    for (int i = 0; i < args_.job.slots; ++i) {
      await_barrier(shared_address(&s->empty[turn_.slot]), turn_.phase ^ 1);
      turn_.next(args_.job.slots);
    }
#pragma unroll 1
    for (int i = 0; i < units.n; ++i) {
      const NextUnit unit = units.of(i);
      const Source& of = unit.output.source;
      const std::uint32_t here = shared_address(&s->next_here[i]);
      if (lane_ < 4)
        copy(of, unit.output.data, unit.pair * kPairSupers, kPairSupers,
             address_of(i * kNextPairBytes), here);
      if (lane_ == 0) barrier_expect(here, kPairSupers * super_bytes(of.type));
    }
  }

 private:
  __device__ __forceinline__ void feed_down() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const int first = cluster() * kDownSupers, k = lane_ / 4;
    if (has_dense_down()) {
      const std::uint32_t to = reserve();
      if (k == 0) copy(args_.dense_down, ffn.dense.down.data, first, kDownSupers, to, full());
      expect(kDownSupers * super_bytes(args_.dense_down.type));
    }
    const int expert_bytes = kDownSupers * super_bytes(args_.down.type), n = s->n_chosen;
    for (int u = first_of_down(); u < n; u += kRanks * args_.job.down_together) {
      const int count = min(args_.job.down_together, (n - u + kRanks - 1) / kRanks);
      const std::byte* data = nullptr;
      if (k < count)
        data = s->table[s->list[u + k * kRanks].id] + ffn.moe.shape.down_offset;
      const std::uint32_t to = reserve();
      if (k < count)
        copy(args_.down, data, first, kDownSupers,
             to + static_cast<std::uint32_t>(k * expert_bytes), full());
      expect(count * expert_bytes);
    }
  }

  __device__ __forceinline__ void pair(const Source& of, const std::byte* data, int index) {
    const std::uint32_t to = reserve();
    if (lane_ < 4) copy(of, data, index * kPairSupers, kPairSupers, to, full());
    expect(kPairSupers * super_bytes(of.type));
  }
  // Of n super-blocks from number `first` on, a plane a lane.
  __device__ __forceinline__ void copy(const Source& of, const std::byte* data, int first, int n,
                                       std::uint32_t to, std::uint32_t here) {
    const int plane = lane_ % 4, bytes = of.bytes[plane];
    if (bytes == 0) return;
    copy_once(to + static_cast<std::uint32_t>(n * of.before[plane]),
              data + of.offset[plane] + std::int64_t{first} * bytes, n * bytes, here);
  }
  __device__ __forceinline__ std::uint32_t full() const {
    return shared_address(&memory()->full[turn_.slot]);
  }
  // The next entry's place, when nobody reads there any more, and not too many are on their way.
  __device__ __forceinline__ std::uint32_t reserve() {
    TogetherShared* s = memory();
    if (asked_ >= kEntriesUnderWay) {
      await_barrier(shared_address(&s->full[come_.slot]), come_.phase);
      come_.next(args_.job.slots);
    }
    ++asked_;
    await_barrier(shared_address(&s->empty[turn_.slot]), turn_.phase ^ 1);
    return address_of(turn_.slot * args_.job.slot_bytes);
  }
  // Bytes may come ahead of what is expected: the arrival is what the barrier waits for.
  __device__ __forceinline__ void expect(int bytes) {
    if (lane_ == 0) barrier_expect(full(), bytes);
    turn_.next(args_.job.slots);
    __syncwarp();  // a lane that waits for a round must not be two rounds late
  }

  const TogetherArgs& args_;
  int lane_, asked_ = 0;
  Turn turn_, come_;  // to ask for, awaited
};

#endif

}  // namespace tessera::gpu::together
