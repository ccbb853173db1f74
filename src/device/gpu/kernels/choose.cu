// Tokens from rows of logits that stay where they are (device/token_choice.h).
//
// A row is cut into kChoicePieces pieces, a block each. The first kernel applies the row's changes
// and finds its largest logit; where all rows take that, the second writes it and is the last.
// Else every token has a weight exp((logit - largest) / temperature) in units of 2^-40, so that
// sums are of integers and no order of adding shows. The weights are counted in bins by their
// exponent; the bins say which tokens top-k and top-p can keep, and only those are gathered and
// ranked; where they are too many, choose_many.cuh draws without. Floor: three reads of the logits,
// which the head has left in L2.
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
constexpr int kCounts = kChoiceBins / kThreads;
static_assert(kChoicePieces <= kThreads && kChoiceBins % kDrawThreads == 0);

// Of the block's row.
__device__ void give(const ChooseArgs& args, ChosenRow chosen) {
  const bool odd = args.step != nullptr && *args.step % 2 != 0;
  args.out[(odd ? args.odd_rows : 0) + blockIdx.x] = chosen;
  if (args.ids != nullptr) args.ids[blockIdx.x] = chosen.id;
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
    row.work.candidates = 0;
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
  if (threadIdx.x == 0) give(args, chosen_largest(best));
}

// Counts the piece's weights in bins, and sums them.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ Mass mass[kChoiceBins];
  __shared__ unsigned count[kChoiceBins];
  __shared__ Mass sums[kThreads / kWarp];
  __shared__ Best best;
  for (int bin = static_cast<int>(threadIdx.x); bin < kChoiceBins; bin += kThreads) {
    mass[bin] = 0;
    count[bin] = 0;
  }
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.y);
  find_best(row.work, &best);
  if (row.greedy() || !isfinite(best.value)) return;
  const Weigher weigh{best.value, row.choice.temperature};
  const Piece piece = piece_of(args, static_cast<int>(blockIdx.x));
  for (int id = piece.begin + static_cast<int>(threadIdx.x); id < piece.end; id += kThreads) {
    const Weight weight = weigh(row.logits[id]);
    if (weight.mass == 0 || !sampleable(args, id)) continue;
    atomicAdd(&mass[weight.bin], weight.mass);
    atomicAdd(&count[weight.bin], 1u);
  }
  __syncthreads();
  Mass sum = 0;
  for (int i = 0; i < kCounts; ++i) {
    const int bin = static_cast<int>(threadIdx.x) + i * kThreads;
    if (count[bin] == 0) continue;
    sum += mass[bin];
    atomicAdd(&row.work.mass[bin], mass[bin]);
    atomicAdd(&row.work.count[bin], count[bin]);
  }
  sum = block_sum<kThreads>(sum, sums);
  if (threadIdx.x == 0) row.work.piece_mass[blockIdx.x] = sum;
}

// The tokens that the filters can keep.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ Bins bins;
  __shared__ Best best;
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.y);
  find_best(row.work, &best);
  if (row.greedy() || !isfinite(best.value) || !filters(row.choice, args.n_vocab)) return;
  find_cut(row.work, row.choice, args.n_vocab, bins);
  if (bins.kept > kChoiceCandidates) return;
  const Weigher weigh{best.value, row.choice.temperature};
  const Piece piece = piece_of(args, static_cast<int>(blockIdx.x));
  for (int id = piece.begin + static_cast<int>(threadIdx.x); id < piece.end; id += kThreads) {
    const float logit = row.logits[id];
    const Weight weight = weigh(logit);
    if (weight.mass == 0 || weight.bin > bins.last || !sampleable(args, id)) continue;
    row.work.key[atomicAdd(&row.work.candidates, 1u)] = rank_key(logit, id);
  }
}

__global__ void __launch_bounds__(kDrawThreads)
    draw_kernel(const TESSERA_GRID_CONSTANT ChooseArgs args, ChoiceWork* works) {
  __shared__ union {
    Bins bins;
    Digits digits;
    Mass key[kChoiceCandidates];
  } shared;
  __shared__ Mass sums[kDrawThreads / kWarp];
  __shared__ Best best;
  __shared__ int found;
  chain_wait();
  chain_trigger();
  const Row row(args, works, blockIdx.x);
  find_best(row.work, &best);
  if (row.greedy() || !isfinite(best.value)) {
    if (threadIdx.x == 0) give(args, chosen_largest(best));
    return;
  }
  const Weigher weigh{best.value, row.choice.temperature};
  find_cut(row.work, row.choice, args.n_vocab, shared.bins);
  const Mass total = shared.bins.total;
  const int kept = static_cast<int>(min(shared.bins.kept, kChoiceCandidates + 1u));
  __syncthreads();

  if (!filters(row.choice, args.n_vocab)) {
    const auto mass_of_id = [&](int id) {
      return sampleable(args, id) ? weigh(row.logits[id]).mass : 0;
    };
    const int id = draw_by_id<kDrawThreads>(args, row, total, mass_of_id, sums, &found);
    if (threadIdx.x == 0) give(args, {id, best.value});
    return;
  }
  if (kept > kChoiceCandidates) {
    const int id =
        draw_of_many<kDrawThreads>(args, row, weigh, total, shared.digits, sums, &found);
    if (threadIdx.x == 0) give(args, {id, best.value});
    return;
  }
  sort_keys<kDrawThreads>(row.work.key, kept, shared.key);
  const bool top_k = limits_count(row.choice, args.n_vocab);
  const int ranked = top_k ? min(kept, row.choice.top_k) : kept;
  const auto mass_at = [&](int i) { return weigh(logit_of(shared.key[i])).mass; };
  const Mass among = top_k ? total_mass<kDrawThreads>(ranked, mass_at, sums) : total;
  // What top-p and min-p keep is a prefix; the rest weighs nothing.
  const double nucleus = nucleus_of(row.choice, among);
  const Mass least = mass_of(row.choice.min_p);
  const Mass kept_mass = prefix_mass<kDrawThreads>(ranked, mass_at, nucleus, least, sums);
  const int place = find_index<kDrawThreads>(ranked, drawn(row.choice.uniform, kept_mass), mass_at,
                                             sums, &found);
  if (threadIdx.x == 0) give(args, {id_of(shared.key[place]), best.value});
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
  if (!args.sampled) return launch_kernel(launch, largest_kernel, dim3(rows), block, 0, args, works);
  error = launch_kernel(launch, weigh_kernel, pieces, block, 0, args, works);
  if (error != 0) return error;
  error = launch_kernel(launch, gather_kernel, pieces, block, 0, args, works);
  if (error != 0) return error;
  return launch_kernel(launch, draw_kernel, dim3(rows), dim3(kDrawThreads), 0, args, works);
}

GpuError restore_logits(const Launch& launch, const ChooseArgs& args) {
  return launch_kernel(launch, restore_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(kThreads), 0, args);
}

}  // namespace tessera::gpu
