// A draw where more tokens pass a row's filters than choose.cu sorts: by one block, exactly.
//
//   const int id = draw_of_many<kThreads>(args, row, weigh, total, digits, sums, &found);
//
// What top-k and top-p keep is a prefix in order of rank. Its last key is found by a radix
// selection: the first digit is the bin, whose sums are there; one pass finds the range of the keys
// in the cut's bin, and each one after that counts and sums them by their next ten bits, until the
// digit of the cut holds one token. The draw is in the order of ids.
//
// Cost: top-k and top-p read the row about three times each, up to eight where logits are equal,
// and the draw reads it once, all from L2: 288 us for a row of 248,320 on an H200 (top-p 0.95).
// It is rare, so not spread over more blocks.
#pragma once

#include "device/gpu/kernels/choose.cuh"

namespace tessera::gpu {

inline constexpr int kDigitBits = 10;
inline constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kChoiceBins, "the bins are a first digit");

struct Tokens {
  Mass mass;
  Mass count;
};

// The tokens of one digit, and those of all keys below them.
struct Digit {
  int value;
  Tokens before, own;
};

struct Digits {
  Mass mass[kDigits];
  unsigned count[kDigits];
  Digit cut;
};

template <int kThreads>
__device__ Mass block_min(Mass value, Mass* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = min(value, shuffle_xor(value, mask));
  if (threadIdx.x % kWarp == 0) shared[warp] = value;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) value = min(value, shared[w]);
  __syncthreads();
  return value;
}

// The last digit in which a token begins within the limit: begins(tokens before it) holds for the
// first token and for none behind one for which it does not.
template <int kThreads, typename Begins>
__device__ Digit find_digit(Digits& digits, Tokens before, Begins begins, Mass* sums) {
  static_assert(kThreads == kDigits);
  const auto value = static_cast<int>(threadIdx.x);
  const Tokens own{digits.mass[value], digits.count[value]};
  Tokens all;
  before.mass += sum_before<kThreads>(own.mass, sums, all.mass);
  const Mass counted = sum_before<kThreads>(own.count, sums, all.count);
  before.count += counted;
  const bool last = counted + own.count == all.count;
  if (own.count > 0 && begins(before) &&
      (last || !begins(Tokens{before.mass + own.mass, before.count + own.count})))
    digits.cut = {value, before, own};
  __syncthreads();
  const Digit cut = digits.cut;
  __syncthreads();
  return cut;
}

// Calls visit(key, mass) for the tokens of a bin with low <= key <= high.
template <int kThreads, typename Visit>
__device__ void for_keys(const ChooseArgs& args, const Row& row, const Weigher& weigh, int bin,
                         Mass low, Mass high, Visit visit) {
  constexpr int kAhead = 4;  // reads under way
  const int n = sampled_ids(args);
  for (int first = static_cast<int>(threadIdx.x); first < n; first += kAhead * kThreads) {
    float logit[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      logit[i] = first + i * kThreads < n ? row.logits[first + i * kThreads] : -INFINITY;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int id = first + i * kThreads;
      const Mass key = rank_key(logit[i], id);
      if (key < low || key > high) continue;
      const Weight weight = weigh(logit[i]);
      if (weight.mass > 0 && weight.bin == bin && sampleable(args, id)) visit(key, weight.mass);
    }
  }
}

// Of the tokens of a bin with low <= key <= high, by (key - low) >> shift. A thread adds up those
// of one digit that follow one another, since equal logits would have all threads wait for one sum.
template <int kThreads>
__device__ void count_digits(const ChooseArgs& args, const Row& row, const Weigher& weigh, int bin,
                             Mass low, Mass high, int shift, Digits& digits) {
  digits.mass[threadIdx.x] = 0;
  digits.count[threadIdx.x] = 0;
  __syncthreads();
  int digit = 0;
  Mass mass = 0;
  unsigned count = 0;
  const auto add = [&] {
    if (count == 0) return;
    atomicAdd(&digits.mass[digit], mass);
    atomicAdd(&digits.count[digit], count);
  };
  for_keys<kThreads>(args, row, weigh, bin, low, high, [&](Mass key, Mass own) {
    const auto of_key = static_cast<int>((key - low) >> shift);
    if (of_key != digit) {
      add();
      digit = of_key;
      mass = 0;
      count = 0;
    }
    mass += own;
    ++count;
  });
  add();
  __syncthreads();
}

// The key that a prefix in rank order ends with, or one between that and the next token's; and what
// the prefix weighs.
struct Prefix {
  Mass last;
  Mass mass;
};

// Of the tokens for which begins() holds, as find_digit() has it.
template <int kThreads, typename Begins>
__device__ Prefix find_prefix(const ChooseArgs& args, const Row& row, const Weigher& weigh,
                              Begins begins, Digits& digits, Mass* sums) {
  digits.mass[threadIdx.x] = row.work.mass[threadIdx.x];
  digits.count[threadIdx.x] = row.work.count[threadIdx.x];
  Digit cut = find_digit<kThreads>(digits, {0, 0}, begins, sums);
  const int bin = cut.value;
  Mass low = ~Mass{0}, high = 0;
  for_keys<kThreads>(args, row, weigh, bin, 0, ~Mass{0}, [&](Mass key, Mass) {
    low = min(low, key);
    high = max(high, key);
  });
  low = block_min<kThreads>(low, sums);
  high = ~block_min<kThreads>(~high, sums);
  int shift = 0;
  while ((high - low) >> shift >= kDigits) ++shift;
  for (;; shift = max(shift - kDigitBits, 0)) {
    count_digits<kThreads>(args, row, weigh, bin, low, high, shift, digits);
    cut = find_digit<kThreads>(digits, cut.before, begins, sums);
    low += static_cast<Mass>(cut.value) << shift;
    high = low + ((Mass{1} << shift) - 1);
    if (shift == 0 || cut.own.count == 1) return {high, cut.before.mass + cut.own.mass};
  }
}

// Fills the row's masses of pieces and returns their sum.
template <int kThreads, typename MassOf>
__device__ Mass weigh_pieces(const ChooseArgs& args, const Row& row, MassOf mass_of_id,
                             Mass* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < kChoicePieces; i += kThreads / kWarp) {
    const Piece piece = piece_of(args, i);
    Mass mass = 0;
    for (int id = piece.begin + lane; id < piece.end; id += kWarp) mass += mass_of_id(id);
    mass = warp_sums(mass);
    if (lane == kWarp - 1) row.work.piece_mass[i] = mass;
  }
  __syncthreads();
  return total_mass<kThreads>(
      kChoicePieces, [&](int i) { return row.work.piece_mass[i]; }, sums);
}

// `total`: of all tokens. Every bin of the row has been counted.
template <int kThreads>
__device__ int draw_of_many(const ChooseArgs& args, const Row& row, const Weigher& weigh,
                            Mass total, Digits& digits, Mass* sums, int* found) {
  const RowChoice& choice = row.choice;
  Prefix kept{~Mass{0}, total};
  if (limits_count(choice, args.n_vocab)) {
    const auto most = static_cast<Mass>(choice.top_k);
    kept = find_prefix<kThreads>(
        args, row, weigh, [&](Tokens before) { return before.count < most; }, digits, sums);
  }
  if (choice.top_p < 1.0f) {  // it cuts within what top-k keeps
    const double nucleus = nucleus_of(choice, kept.mass);
    kept = find_prefix<kThreads>(
        args, row, weigh, [&](Tokens before) { return static_cast<double>(before.mass) < nucleus; },
        digits, sums);
  }
  const Mass least = mass_of(choice.min_p);
  const auto kept_mass = [&](int id) {
    const float logit = row.logits[id];
    if (rank_key(logit, id) > kept.last) return Mass{0};
    const Mass mass = weigh(logit).mass;
    return mass >= least && sampleable(args, id) ? mass : Mass{0};
  };
  const Mass mass = weigh_pieces<kThreads>(args, row, kept_mass, sums);
  return draw_by_id<kThreads>(args, row, mass, kept_mass, sums, found);
}

}  // namespace tessera::gpu
