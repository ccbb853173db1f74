// Tokens from rows of logits that stay where they are (device/token_choice.h).
//
// A row is cut into kChoicePieces pieces, a block each. The first kernel applies the row's changes
// and finds its largest logit; where all rows take that, the second writes it and is the last.
// Else every token has a weight exp((logit - largest) / temperature) in units of 2^-40, so that
// sums are of integers and no order of adding shows. The weights are counted in bins by their
// exponent; the bins say which tokens top-k and top-p can keep, and only those are gathered and
// ranked, by the row's last block; where they are too many, choose_many.cuh draws without. Floor:
// three reads of the logits, which the head has left in L2.
//
// With no filter, or of many, a row is drawn in the order of ids, else in rank order.
#include <algorithm>

#include "device/gpu/kernels/choose.cuh"
#include "device/gpu/kernels/choose_many.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256, kDrawThreads = 1024;
static_assert(kChoicePieces <= kThreads && kChoiceBins == kDrawThreads);

__device__ void give(const ChooseArgs& args, unsigned row, ChosenRow chosen) {
  const bool odd = args.step != nullptr && *args.step % 2 != 0;
  args.out[(odd ? args.odd_rows : 0) + row] = chosen;
  if (args.ids != nullptr) args.ids[row] = chosen.id;
}

__device__ float changed(float logit, const LogitChange& change) {
  logit += change.bias;
  logit = logit > 0.0f ? logit / change.penalty : logit * change.penalty;
  return logit - change.less;
}

// Calls visit(i, id) for the first change of each id of the piece; a row's changes rise by id.
template <typename Visit>
__device__ void for_changed_ids(const ChooseArgs& args, const RowChoice& choice, Piece piece,
                                Visit visit) {
  const int end = choice.first_change + choice.n_changes;
  for (int i = choice.first_change + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const std::int32_t id = args.changes[i].id;
    if (id < piece.begin || id >= piece.end) continue;
    if (i > choice.first_change && args.changes[i - 1].id == id) continue;
    visit(i, id);
  }
}

__device__ void apply_changes(const ChooseArgs& args, const Row& row, Piece piece) {
  if (row.choice.n_changes == 0) return;
  const int end = row.choice.first_change + row.choice.n_changes;
  for_changed_ids(args, row.choice, piece, [&](int i, std::int32_t id) {
    float logit = row.logits[id];
    args.before[i] = logit;
    for (; i < end && args.changes[i].id == id; ++i) logit = changed(logit, args.changes[i]);
    row.logits[id] = logit;
  });
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    pieces_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ Best shared[kThreads / kWarp];
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.y);
  const Piece piece = piece_of(args, static_cast<int>(blockIdx.x));
  apply_changes(args, row, piece);
  constexpr int kCleared = kChoiceBins / kChoicePieces;
  if (args.sampled && threadIdx.x < kCleared) {
    const unsigned bin = blockIdx.x * kCleared + threadIdx.x;
    row.work.count[bin] = 0;
    row.work.mass[bin] = 0;
    row.work.candidates = row.work.arrived = 0;
  }
  // Some logits at a time, since each look at the best one waits for its own.
  constexpr int kAhead = 8;
  Best best{-INFINITY, -1};
  for (int first = piece.begin + static_cast<int>(threadIdx.x); first < piece.end;
       first += kAhead * kThreads) {
    float value[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int id = first + i * kThreads;
      value[i] = id < piece.end ? row.logits[id] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int id = first + i * kThreads;
      if (value[i] > best.value && sampleable(args, id)) best = {value[i], id};
    }
  }
  best = block_best<kThreads>(best, shared);
  if (threadIdx.x == 0) row.work.best[blockIdx.x] = best;
}

__global__ void __launch_bounds__(kThreads)
    largest_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ Best best;
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.x);
  find_best(row.work, &best);
  if (threadIdx.x == 0) give(args, blockIdx.x, chosen_largest(best));
}

// Some of a piece's logits, asked for before they are needed: number i of this thread, past the
// end no token's. A round leaves out one token, for the sake of Counter.
constexpr int kOwnLogits = 4, kRound = kOwnLogits * kDrawThreads - 1;
struct OwnLogits {
  float of[kOwnLogits];
  __device__ __forceinline__ static int place(int i) {
    return i * kDrawThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ void load(const float* logits, int first, int end) {
#pragma unroll
    for (int i = 0; i < kOwnLogits; ++i)
      of[i] = place(i) < kRound && first + place(i) < end ? logits[first + place(i)] : -INFINITY;
  }
};

// A block's weights by bin, in 32-bit parts, whose additions to shared memory need no loop. So many
// tokens that no part overflows: a mass is at most 2^40.
struct Counter {
  static constexpr int kLowBits = 20;
  static_assert(kRound < 1 << (32 - kLowBits));
  unsigned low[kChoiceBins], high[kChoiceBins], count[kChoiceBins];

  // A thread a bin.
  __device__ __forceinline__ void clear() {
    low[threadIdx.x] = high[threadIdx.x] = count[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void add(const Weight& weight) {
    atomicAdd(&low[weight.bin], static_cast<unsigned>(weight.mass & ((1u << kLowBits) - 1)));
    atomicAdd(&high[weight.bin], static_cast<unsigned>(weight.mass >> kLowBits));
    atomicAdd(&count[weight.bin], 1u);
  }
  __device__ __forceinline__ Mass mass() const {
    return (static_cast<Mass>(high[threadIdx.x]) << kLowBits) + low[threadIdx.x];
  }
};

// Counts the piece's weights in bins, and sums them.
__global__ void __launch_bounds__(kDrawThreads)
    weigh_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ Counter counter;
  __shared__ Mass sums[kDrawThreads / kWarp];
  __shared__ Best best;
  counter.clear();
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.y);
  const Piece piece = piece_of(args, static_cast<int>(blockIdx.x));
  OwnLogits own;
  own.load(row.logits, piece.begin, piece.end);
  find_best(row.work, &best);
  if (row.greedy() || !isfinite(best.value)) return;
  const Weigher weigh{best.value, row.choice.temperature};
  Mass mass = 0;
  unsigned count = 0;
  for (int first = piece.begin; first < piece.end; first += kRound) {
#pragma unroll
    for (int i = 0; i < kOwnLogits; ++i) {
      const Weight weight = weigh(own.of[i]);
      if (weight.mass != 0 && sampleable(args, first + own.place(i))) counter.add(weight);
    }
    __syncthreads();
    mass += counter.mass();
    count += counter.count[threadIdx.x];
    if (first + kRound >= piece.end) break;
    counter.clear();
    own.load(row.logits, first + kRound, piece.end);
    __syncthreads();
  }
  if (count != 0) {
    atomicAdd(&row.work.mass[threadIdx.x], mass);
    atomicAdd(&row.work.count[threadIdx.x], count);
  }
  mass = block_sum<kDrawThreads>(mass, sums);
  if (threadIdx.x == 0) row.work.piece_mass[blockIdx.x] = mass;
}

// The piece's tokens that the filters can keep: a place for those of a warp at once.
__device__ void gather(const ChooseArgs& args, const Row& row, const Weigher& weigh, Piece piece,
                       int last, OwnLogits& own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = piece.begin; first < piece.end; first += kRound) {
    if (first != piece.begin) own.load(row.logits, first, piece.end);
    bool kept[kOwnLogits];
    Mass n = 0;
#pragma unroll
    for (int i = 0; i < kOwnLogits; ++i) {
      const Weight weight = weigh(own.of[i]);
      kept[i] = weight.mass != 0 && weight.bin <= last && sampleable(args, first + own.place(i));
      n += kept[i] ? 1 : 0;
    }
    const Mass before = warp_sums(n) - n, all = shuffle(before + n, kWarp - 1);
    if (all == 0) continue;
    unsigned place = 0;
    if (lane == 0) place = atomicAdd(&row.work.candidates, static_cast<unsigned>(all));
    place = shuffle(place, 0) + static_cast<unsigned>(before);
#pragma unroll
    for (int i = 0; i < kOwnLogits; ++i)
      if (kept[i]) row.work.key[place++] = rank_key(own.of[i], first + own.place(i));
  }
}

// Whether this is the last of the row's blocks to come here; it sees what the others wrote.
__device__ bool is_last(const Row& row) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&row.work.arrived, 1u) == kChoicePieces - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// A token of those gathered.
__device__ int draw_ranked(const ChooseArgs& args, const Row& row, const Weigher& weigh, Mass total,
                           int kept, Mass* key, Mass* sums, int* found) {
  sort_keys<kDrawThreads>(row.work.key, kept, key);
  const bool top_k = limits_count(row.choice, args.n_vocab);
  const int ranked = top_k ? min(kept, row.choice.top_k) : kept;
  const auto mass_at = [&](int i) { return weigh(logit_of(key[i])).mass; };
  const Mass among = top_k ? total_mass<kDrawThreads>(ranked, mass_at, sums) : total;
  // What top-p and min-p keep is a prefix; the rest weighs nothing.
  const double nucleus = nucleus_of(row.choice, among);
  const Mass least = mass_of(row.choice.min_p);
  const Mass kept_mass = prefix_mass<kDrawThreads>(ranked, mass_at, nucleus, least, sums);
  const int place = find_index<kDrawThreads>(ranked, drawn(row.choice.uniform, kept_mass), mass_at,
                                             sums, found);
  return id_of(key[place]);
}

// Every block gathers of its piece; the row's last one draws. Where nothing is gathered the first
// one draws.
__global__ void __launch_bounds__(kDrawThreads)
    draw_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ union {
    Digits digits;
    Mass key[kChoiceCandidates];
  } shared;
  __shared__ Mass sums[kDrawThreads / kWarp];
  __shared__ Best best;
  __shared__ Cut cut;
  __shared__ int found;
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.y);
  const Piece piece = piece_of(args, static_cast<int>(blockIdx.x));
  OwnLogits own;
  own.load(row.logits, piece.begin, piece.end);
  find_best(row.work, &best);
  const bool first = blockIdx.x == 0, filtered = filters(row.choice, args.n_vocab);
  if (row.greedy() || !isfinite(best.value)) {
    if (first && threadIdx.x == 0) give(args, blockIdx.y, chosen_largest(best));
    return;
  }
  if (!filtered && !first) return;
  const Weigher weigh{best.value, row.choice.temperature};
  const Mass total = find_cut<kDrawThreads>(row.work, row.choice, args.n_vocab, cut, sums);
  int id = 0;
  if (!filtered) {
    const auto mass_of_id = [&](int i) {
      return sampleable(args, i) ? weigh(row.logits[i]).mass : 0;
    };
    id = draw_by_id<kDrawThreads>(args, row, total, mass_of_id, sums, &found);
  } else if (cut.kept > kChoiceCandidates) {
    if (!first) return;
    id = draw_of_many<kDrawThreads>(args, row, weigh, total, shared.digits, sums, &found);
  } else {
    gather(args, row, weigh, piece, cut.last, own);
    if (!is_last(row)) return;
    id = draw_ranked(args, row, weigh, total, static_cast<int>(cut.kept), shared.key, sums, &found);
  }
  if (threadIdx.x == 0) give(args, blockIdx.y, {id, best.value});
}

__global__ void __launch_bounds__(kThreads)
    restore_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args) {
  chain_wait();
  chain_trigger();
  const RowChoice choice = args.choices[blockIdx.x];
  float* logits = args.logits + static_cast<std::int64_t>(blockIdx.x) * args.n_vocab;
  for_changed_ids(args, choice, {0, sampled_ids(args)},
                  [&](int i, std::int32_t id) { logits[id] = args.before[i]; });
}

}  // namespace

GpuError choose(const Launch& launch, const ChooseArgs& args) {
  auto* works = static_cast<ChoiceWork*>(launch.workspace);
  const auto rows = static_cast<unsigned>(args.rows);
  const dim3 pieces(kChoicePieces, rows), block(kThreads);
  GpuError error = launch_kernel(launch, pieces_kernel, pieces, block, 0, args, works);
  if (error != 0) return error;
  if (!args.sampled)
    return launch_kernel(launch, largest_kernel, dim3(rows), block, 0, args, works);
  error = launch_kernel(launch, weigh_kernel, pieces, dim3(kDrawThreads), 0, args, works);
  if (error != 0) return error;
  return launch_kernel(launch, draw_kernel, pieces, dim3(kDrawThreads), 0, args, works);
}

GpuError restore_logits(const Launch& launch, const ChooseArgs& args) {
  return launch_kernel(launch, restore_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(kThreads), 0, args);
}

}  // namespace tessera::gpu
