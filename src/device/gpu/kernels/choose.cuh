// What the kernels of choose.cu are made of: weights and their bins, where the filters cut, ranks,
// and sums over a block. Every function is called by all threads of a block.
#pragma once

#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

using Mass = unsigned long long;  // of probability, in units of 2^-40 of the likeliest token's

struct Best {
  float value;
  std::int32_t id;
};

// Of one row, between the kernels.
struct ChoiceWork {
  Mass mass[kChoiceBins];
  Mass piece_mass[kChoicePieces];
  Mass key[kChoiceCandidates];
  Best best[kChoicePieces];
  unsigned count[kChoiceBins];
  unsigned candidates;
  unsigned arrived;  // pieces whose candidates are there
};
static_assert(sizeof(ChoiceWork) == kChoiceWorkBytes);

struct Piece {
  int begin;
  int end;
};

__device__ inline int sampled_ids(const ChooseArgs& args) {
  return min(args.n_token, args.n_vocab);
}

__device__ inline Piece piece_of(const ChooseArgs& args, int index) {
  const int n = sampled_ids(args), size = (n + kChoicePieces - 1) / kChoicePieces;
  const int begin = min(index * size, n);
  return {begin, min(begin + size, n)};
}

// The choice of the block's row and where it lies.
struct Row {
  __device__ Row(const ChooseArgs& args, ChoiceWork* works, unsigned row)
      : choice(args.choices[row]),
        work(works[row]),
        logits(args.logits + static_cast<std::int64_t>(row) * args.n_vocab) {}
  RowChoice choice;
  ChoiceWork& work;
  float* logits;
  __device__ bool greedy() const { return choice.temperature == 0.0f || choice.top_k == 1; }
};

__device__ inline bool sampleable(const ChooseArgs& args, std::int32_t id) {
  int low = 0, high = args.n_suppressed;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (args.suppressed[middle] == id) return false;
    if (args.suppressed[middle] < id)
      low = middle + 1;
    else
      high = middle;
  }
  return true;
}

// --- The largest logit; the lower id of equal ones ---

__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

__device__ __forceinline__ Best warp_best(Best best, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2)
    best = better(best, {shuffle_xor(best.value, mask), shuffle_xor(best.id, mask)});
  return best;
}

// The first warp gets it.
template <int kThreads>
__device__ Best block_best(Best best, Best* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  best = warp_best(best, kWarp);
  if (lane == 0) shared[warp] = best;
  __syncthreads();
  return warp_best(shared[lane % (kThreads / kWarp)], kThreads / kWarp);
}

// Of a row's pieces.
__device__ inline void find_best(const ChoiceWork& work, Best* shared) {
  if (threadIdx.x < kWarp) {
    Best best{-INFINITY, -1};
    for (int i = static_cast<int>(threadIdx.x); i < kChoicePieces; i += kWarp)
      best = better(best, work.best[i]);
    best = warp_best(best, kWarp);
    if (threadIdx.x == 0) *shared = best;
  }
  __syncthreads();
}

__device__ inline ChosenRow chosen_largest(Best best) {
  return {isfinite(best.value) ? best.id : kNoToken, best.value};
}

// --- Weights ---

struct Weight {
  Mass mass;
  int bin;  // rises as the logit falls
};

__device__ inline Mass mass_of(float weight) {
  return __float2ull_rn(weight * 0x1p40f);
}

struct Weigher {
  float largest;
  float temperature;
  __device__ Weight operator()(float logit) const {
    if (!(logit > -INFINITY)) return {0, kChoiceBins - 1};  // NaN too
    constexpr float kBinsPerUnit = 32.0f;
    const float below = (largest - logit) / temperature;
    return {mass_of(expf(-below)),
            static_cast<int>(fminf(below * kBinsPerUnit, kChoiceBins - 1.0f))};
  }
};

// Where a draw falls in what is kept.
__device__ inline Mass drawn(double uniform, Mass kept) {
  const auto at = static_cast<Mass>(uniform * static_cast<double>(kept));
  return at < kept ? at : kept - 1;
}

// --- Sums over a block, of integers and therefore of any order ---

__device__ __forceinline__ Mass warp_sums(Mass value) {  // inclusive
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int by = 1; by < kWarp; by *= 2) {
    const Mass other = shuffle(value, lane < by ? lane : lane - by);
    if (lane >= by) value += other;
  }
  return value;
}

// The sum of the threads before this one; `all` is everybody's.
template <int kThreads>
__device__ Mass sum_before(Mass value, Mass* shared, Mass& all) {
  constexpr int kWarps = kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Mass inside = warp_sums(value);
  if (lane == kWarp - 1) shared[warp] = inside;
  __syncthreads();
  Mass before = 0;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared[w];
    all += shared[w];
  }
  __syncthreads();
  return before + inside - value;
}

template <int kThreads>
__device__ Mass block_sum(Mass value, Mass* shared) {
  Mass all = 0;
  sum_before<kThreads>(value, shared, all);
  return all;
}

// The part of n items that is this thread's.
template <int kThreads>
__device__ Piece share_of(int n) {
  const int size = (n + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * size, n);
  return {begin, min(begin + size, n)};
}

template <int kThreads, typename MassAt>
__device__ Mass own_mass(int n, MassAt mass_at) {
  const Piece own = share_of<kThreads>(n);
  Mass sum = 0;
  for (int i = own.begin; i < own.end; ++i) sum += mass_at(i);
  return sum;
}

template <int kThreads, typename MassAt>
__device__ Mass total_mass(int n, MassAt mass_at, Mass* shared) {
  return block_sum<kThreads>(own_mass<kThreads>(n, mass_at), shared);
}

// Of the items that begin below `nucleus` and weigh at least `least`.
template <int kThreads, typename MassAt>
__device__ Mass prefix_mass(int n, MassAt mass_at, double nucleus, Mass least, Mass* shared) {
  Mass all = 0, kept = 0;
  Mass before = sum_before<kThreads>(own_mass<kThreads>(n, mass_at), shared, all);
  const Piece own = share_of<kThreads>(n);
  for (int i = own.begin; i < own.end; ++i) {
    const Mass mass = mass_at(i);
    if (static_cast<double>(before) < nucleus && mass >= least) kept += mass;
    before += mass;
  }
  return block_sum<kThreads>(kept, shared);
}

// The item in which the running sum passes `target`, which is below all of it.
template <int kThreads, typename MassAt>
__device__ int find_index(int n, Mass target, MassAt mass_at, Mass* shared, int* found) {
  Mass all = 0;
  Mass before = sum_before<kThreads>(own_mass<kThreads>(n, mass_at), shared, all);
  const Piece own = share_of<kThreads>(n);
  for (int i = own.begin; i < own.end; ++i) {
    const Mass mass = mass_at(i);
    if (before <= target && target < before + mass) *found = i;
    before += mass;
  }
  __syncthreads();
  const int index = *found;
  __syncthreads();
  return index;
}

// The token in which the running sum over ids passes the row's draw among `kept`, the sum of all
// masses; those of the pieces are there.
template <int kThreads, typename MassOf>
__device__ int draw_by_id(const ChooseArgs& args, const Row& row, Mass kept, MassOf mass_of_id,
                          Mass* shared, int* found) {
  const Mass target = drawn(row.choice.uniform, kept);
  const auto piece_mass = [&](int i) { return row.work.piece_mass[i]; };
  const int index = find_index<kThreads>(kChoicePieces, target, piece_mass, shared, found);
  Mass before = 0;
  for (int i = 0; i < index; ++i) before += row.work.piece_mass[i];
  const Piece piece = piece_of(args, index);
  const auto mass_at = [&](int i) { return mass_of_id(piece.begin + i); };
  return piece.begin + find_index<kThreads>(piece.end - piece.begin, target - before, mass_at,
                                            shared, found);
}

// --- Where the filters cut ---

struct Cut {
  int of_count, of_mass;  // bins in which top-k and top-p cut
  int last;               // bins up to it can be kept
  unsigned kept;          // tokens in them
};

__device__ inline bool limits_count(const RowChoice& choice, int n_vocab) {
  return choice.top_k > 0 && choice.top_k < n_vocab;
}
__device__ inline bool filters(const RowChoice& choice, int n_vocab) {
  return limits_count(choice, n_vocab) || choice.top_p < 1.0f || choice.min_p > 0.0f;
}

// Top-p keeps the tokens that begin below it in rank order, the first one always.
__device__ inline double nucleus_of(const RowChoice& choice, Mass among) {
  if (choice.top_p >= 1.0f) return INFINITY;
  return fmax(static_cast<double>(choice.top_p) * static_cast<double>(among), 1.0);
}

// Tokens below the cut's bin are kept by no filter. Those in it, and above it some that min-p
// drops, are told apart by rank. A thread a bin; returns the mass of all tokens.
template <int kThreads>
__device__ Mass find_cut(const ChoiceWork& work, const RowChoice& choice, int n_vocab, Cut& cut,
                         Mass* sums) {
  static_assert(kThreads == kChoiceBins);
  const auto bin = static_cast<int>(threadIdx.x);
  const Mass own_mass = work.mass[bin], own_count = work.count[bin];
  if (bin == 0) cut.of_count = cut.of_mass = kChoiceBins - 1;
  Mass total = 0, tokens = 0;
  const Mass mass_before = sum_before<kThreads>(own_mass, sums, total);
  const Mass count_before = sum_before<kThreads>(own_count, sums, tokens);
  const double nucleus = nucleus_of(choice, total);
  const auto most = static_cast<Mass>(max(choice.top_k, 1));
  if (count_before < most && count_before + own_count >= most) cut.of_count = bin;
  if (static_cast<double>(mass_before) < nucleus &&
      static_cast<double>(mass_before + own_mass) >= nucleus)
    cut.of_mass = bin;
  __syncthreads();
  // Top-p counts in what top-k keeps, so all of that is needed.
  const bool by_count = limits_count(choice, n_vocab);
  const int last = by_count                ? cut.of_count
                   : choice.top_p < 1.0f   ? cut.of_mass
                                           : kChoiceBins - 1;
  const int least =
      by_count || choice.min_p <= 0.0f
          ? kChoiceBins - 1
          : Weigher{0.0f, 1.0f}(logf(choice.min_p)).bin + 1;  // one more for its rounding
  if (bin == min(min(last, least), kChoiceBins - 1)) {
    cut.last = bin;
    cut.kept = static_cast<unsigned>(count_before + own_count);
  }
  __syncthreads();
  return total;
}

// --- Ranks ---

// Rises as the rank falls: the complement of the logit's order, then the id.
__device__ inline Mass rank_key(float logit, std::int32_t id) {
  const auto bits = static_cast<unsigned>(__float_as_int(logit));
  const unsigned order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Mass>(~order) << 32 | static_cast<unsigned>(id);
}
__device__ inline float logit_of(Mass key) {
  const unsigned order = ~static_cast<unsigned>(key >> 32);
  const unsigned bits = (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order;
  return __int_as_float(static_cast<int>(bits));
}
__device__ inline std::int32_t id_of(Mass key) {
  return static_cast<std::int32_t>(key & 0xffffffffu);
}

// Copies n keys, all different, into shared memory in rising order: few by counting for each how
// many are below it, more in bitonic order. They come from other blocks.
inline constexpr int kCountedKeys = 128;
template <int kThreads>
__device__ void sort_keys(const volatile Mass* keys, int n, Mass* shared) {
  if (n <= kCountedKeys) {
    Mass* unsorted = shared + kCountedKeys;
    const auto own = static_cast<int>(threadIdx.x);
    const Mass key = own < n ? keys[own] : 0;
    if (own < n) unsorted[own] = key;
    __syncthreads();
    if (own < n) {
      int below = 0;
#pragma unroll 8
      for (int i = 0; i < n; ++i) below += unsorted[i] < key ? 1 : 0;
      shared[below] = key;
    }
    __syncthreads();
    return;
  }
  int size = 2;
  while (size < n) size *= 2;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads)
    shared[i] = i < n ? keys[i] : ~Mass{0};
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (step - 1)), high = low + step;
        const bool rising = (low & run) == 0;
        const Mass a = shared[low], b = shared[high];
        if ((a > b) == rising) {
          shared[low] = b;
          shared[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace tessera::gpu
