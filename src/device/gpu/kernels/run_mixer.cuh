// The mixer of one layer in run.h's kernel, as a block's 16 reading warps see it: projections in,
// the delta rule on 32 columns of a head (attention: run_attention.cuh), and the projection out to
// a tile of the residual. Alpha and beta are helpers' work.
#pragma once

#include "device/gpu/kernels/run_products.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

// Where what passes between blocks lies.
struct Passed {
  std::byte* memory;
  static constexpr PassedLayout kAt = passed_layout();
  __device__ __forceinline__ Value* values(std::int64_t at) const {
    return reinterpret_cast<Value*>(memory + at);
  }
  __device__ __forceinline__ Record* records(std::int64_t at) const {
    return reinterpret_cast<Record*>(memory + at);
  }
  __device__ __forceinline__ unsigned* words(std::int64_t at) const {
    return reinterpret_cast<unsigned*>(memory + at);
  }
  __device__ __forceinline__ Value* hidden() const { return values(kAt.hidden); }
  __device__ __forceinline__ Value* middle() const { return values(kAt.middle); }
  __device__ __forceinline__ Value* in() const { return values(kAt.in); }
  __device__ __forceinline__ Value* logits() const { return values(kAt.logits); }
  __device__ __forceinline__ Value* dense() const { return values(kAt.dense); }
  __device__ __forceinline__ Record* heads() const { return records(kAt.heads); }
  __device__ __forceinline__ Record* h() const { return records(kAt.h); }
  __device__ __forceinline__ Record* partials() const { return records(kAt.partials); }
  __device__ __forceinline__ Record* rows_h() const { return records(kAt.rows_h); }
  __device__ __forceinline__ Value* rows_middle(int row) const {
    return values(kAt.rows_middle) + row * kCols;
  }
  __device__ __forceinline__ Value* rows_parts() const { return values(kAt.rows_parts); }
  __device__ __forceinline__ Value* rows_squares() const { return values(kAt.rows_squares); }
  __device__ __forceinline__ unsigned* run() const { return words(kAt.run); }
  __device__ __forceinline__ unsigned* rows_run() const { return words(kAt.rows_run); }
};

// The sum of row lane % 16 of tile lane / 16 of a pair, of which half the warps had one each.
__device__ __forceinline__ float pair_total(const Shares& shares, int lane) {
  float sum = 0;
#pragma unroll
  for (int part = 0; part < kSupers; ++part)
    sum += shares[lane / 16 * kSupers + part][lane % 16];
  return sum;
}

// What a reading warp has in hand.
struct Warp {
  Reader reader;
  Passed passed;
  int warp, lane;
  unsigned number;  // of the layer, for run_values.cuh; odd in odd layers

  // Of two entries that belong together the one of this half of the warps.
  __device__ __forceinline__ std::uint32_t half_entry(unsigned pair = 0) const {
    return address_of(reader.entry(2 * pair + static_cast<unsigned>(warp) / 8));
  }
  __device__ __forceinline__ float pair_total(const Shares& shares) const {
    return run::pair_total(shares, lane);
  }
};

// Sums of two or three pairs of tiles in Q4_K, half the warps a tile, behind the barrier that says
// that the row is rounded. Weights are on their way ahead of it, the third pair's while the second
// one is multiplied.
__device__ __forceinline__ void q4_pairs(Warp& w, int n) {
  constexpr BlockType kType = BlockType::Q4_K;
  Shared* s = shared();
  const int index = w.warp % 8;
  RawSuper raw[2];
  load_super_here<kType>(raw[0], w.half_entry(), 8, index, w.lane);
  load_super_here<kType>(raw[1], w.half_entry(1), 8, index, w.lane);
  w.reader.release(4, w.lane);
  readers_sync();
  const RowPart<kType> row = row_part_here<kType>(row_address(index), w.lane);
  __syncwarp();  // as in dot_here()
  RowSums sums[3];
  dot_super<kType>(raw[0], row, w.lane, sums[0]);
  if (n == 3) {
    load_super_here<kType>(raw[0], w.half_entry(), 8, index, w.lane);
    w.reader.release(2, w.lane);
  }
  dot_super<kType>(raw[1], row, w.lane, sums[1]);
  put_sum(sums[0].own_total(w.lane), w.lane, s->shares[0][w.warp]);
  put_sum(sums[1].own_total(w.lane), w.lane, s->shares[1][w.warp]);
  if (n < 3) return;
  dot_super<kType>(raw[0], row, w.lane, sums[2]);
  put_sum(sums[2].own_total(w.lane), w.lane, s->shares[2][w.warp]);
}

// Workers: the row is rounded, then multiplied.
__device__ __forceinline__ void mixer_in(Warp& w, const Layer& l) {
  Shared* s = shared();
  const int block = static_cast<int>(blockIdx.x), index = w.warp % 8;
  const int n = block + 2 * kWorkers < l.in_ends[2] ? 3 : 2;
  const int norm = w.reader.entry(0);
  if (w.warp < kSupers) take_row(w.passed.hidden(), norm, 0, nullptr, 0, l.eps, w.number);
  w.reader.release(1, w.lane);
  if (l.in_is_q4 != 0) {
    q4_pairs(w, n);
  } else {
    readers_sync();
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const int pair = block + i * kWorkers;
      const BlockType type = l.in[pair < l.in_ends[0] ? 0 : pair < l.in_ends[1] ? 1 : 2];
      const float sum = super_sum(type, w.half_entry(), 8, index, row_address(index), threadIdx.x);
      put_sum(sum, w.lane, s->shares[i][w.warp]);
      w.reader.release(2, w.lane);
    }
  }
  readers_sync();
  // Outputs stand one behind the other: pairs are places.
  if (w.warp < n)
    pass_value(w.passed.in() + (block + w.warp * kWorkers) * kGroup + w.lane,
               w.pair_total(s->shares[w.warp]) * row_factor(0, l.eps), w.number);
}

// Helpers: alpha and beta, of the normed row as it is, a row of theirs a warp.
__device__ __forceinline__ void delta_gates(Warp& w, const Layer& l) {
  static_assert(kGateRows == kReaders);
  Shared* s = shared();
  const int norm = w.reader.entry(0);
  if (w.warp < kSupers) {
    const auto* weights = reinterpret_cast<const float*>(shared_bytes() + norm);
    const Eight weight = load_eight(weights + w.warp * kSuperCols, w.lane);
    const Eight v = await_eight(w.passed.hidden(), w.warp, w.lane, w.number);
    const Eight x = times(v, weight);
    auto* to = reinterpret_cast<float4*>(s->normed + w.warp * kSuperCols + eight_at(w.lane));
    to[0] = x.low, to[4] = x.high;
    const float square = sum_of_groups(squares(v));
    if (w.lane == 0) s->squares[0][w.warp] = square;
  }
  w.reader.release(1, w.lane);
  readers_sync();
  const auto* row = reinterpret_cast<const float*>(
      shared_bytes() + w.reader.entry(static_cast<unsigned>(w.warp / kRowsTogether)) +
      w.warp % kRowsTogether * (kCols * 4));
  float total = 0;
#pragma unroll 1
  for (int i = 0; i < kSupers; ++i)
    total += warp_sum(dot_eight(load_eight(row + i * kSuperCols, w.lane),
                                load_eight(s->normed + i * kSuperCols, w.lane), 0.0f));
  total *= row_factor(0, l.eps);
  const int helper = static_cast<int>(blockIdx.x) - kWorkers;
  if (w.lane == 0)
    pass_value(w.passed.in() + l.in_ends[2] * kGroup + helper * kGateRows + w.warp, total,
               w.number);
  w.reader.release(kGateRows / kRowsTogether, w.lane);
}

// Two columns of S a warp: 4 of their 128 values a lane and column.
struct Columns {
  float4 of[2];
};

// The convolution of channel `c`, of the block's channels number i; its newest input to the ring.
__device__ __forceinline__ void convolve(const Warp& w, const Layer& l, int head, int first_column,
                                         int i, int c, const float* entry) {
  const float* taps = entry + kTapsAt / 4 + i;
  const float* past = entry + kPastAt / 4 + i;
  float sum = 0;
#pragma unroll
  for (int j = 0; j + 1 < kTaps; ++j) sum = fmaf(taps[j * kChannels], past[j * kChannels], sum);
  const float newest = taps[(kTaps - 1) * kChannels];
  const float x = await_value(w.passed.in() + c, w.number);
  float* to = i < kDim       ? shared()->q + i
              : i < 2 * kDim ? shared()->k + i - kDim
                             : shared()->v + i - 2 * kDim;
  *to = silu_called(fmaf(newest, x, sum));
  // Keys and queries are several heads': the first one that reads them writes.
  const int per_key = kHeads / l.key_heads;
  const bool first = first_column == 0 && (l.grouped ? head % per_key == 0 : head < l.key_heads);
  if (i >= 2 * kDim || first)
    l.state[shared()->sequence.slot * l.slot_stride +
            shared()->sequence.first_position % kTaps * l.channels + c] = x;
}

// S' = decay S + k (beta (v - k' decay S)); what the warp's columns read of it with q goes to
// s->mixed.
__device__ __forceinline__ void step_columns(Warp& w, Columns& S) {
  Shared* s = shared();
  const float decay = s->decay, beta = s->beta;
  float4 q = *reinterpret_cast<const float4*>(s->q + 4 * w.lane);
  float4 k = *reinterpret_cast<const float4*>(s->k + 4 * w.lane);
  const auto dot = [](const float4& a, const float4& b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, 0.0f))));
  };
  const float q_scale = 1.0f / sqrtf(static_cast<float>(kDim));
  const float qf = q_scale * inverse_root(warp_sum(dot(q, q)) + kL2Eps);
  const float kf = inverse_root(warp_sum(dot(k, k)) + kL2Eps);
  q = times(q, qf), k = times(k, kf);
  float read[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) read[j] = dot(S.of[j], k);
#pragma unroll
  for (int j = 0; j < 2; ++j) read[j] = warp_sum(read[j]);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float delta = beta * (s->v[w.warp * 2 + j] - decay * read[j]);
    float4& c = S.of[j];
    c = {fmaf(k.x, delta, c.x * decay), fmaf(k.y, delta, c.y * decay),
         fmaf(k.z, delta, c.z * decay), fmaf(k.w, delta, c.w * decay)};
    read[j] = dot(c, q);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) read[j] = warp_sum(read[j]);
  if (w.lane < 2) s->mixed[w.warp * 2 + w.lane] = w.lane == 0 ? read[0] : read[1];
}

// Workers.
__device__ __forceinline__ void delta(Warp& w, const Layer& l) {
  Shared* s = shared();
  const int block = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x);
  const int head = block / 4, first_column = block % 4 * kGroup;
  const int key_head = l.grouped ? head / (kHeads / l.key_heads) : head % l.key_heads;
  const int keys = l.key_heads * kDim;
  const int c = i < kDim        ? key_head * kDim + i
                : i < 2 * kDim  ? keys + key_head * kDim + i - kDim
                : i < kChannels ? 2 * keys + head * kDim + first_column + i - 2 * kDim
                                : -1;
  const char* entry = shared_bytes() + w.reader.entry(0);
  const auto* floats = reinterpret_cast<const float*>(entry);
  Columns S;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    S.of[j] = *reinterpret_cast<const float4*>(entry + (w.warp * 2 + j) * (kDim * 4) + w.lane * 16);
  const float norm = floats[kNormAt / 4 + w.lane];
  constexpr int kGatesWarp = kChannels / kWarp, kGroupWarp = kReaders - 1;
  if (c >= 0) {
    convolve(w, l, head, first_column, i, c, floats);
  } else if (w.warp == kGatesWarp) {
    const Value* at = w.passed.in() + l.channels + kValues + head;
    const float x = w.lane < 2 ? await_value(at + w.lane * kHeads, w.number) : 0.0f;
    const DeltaGates gates =
        gates_of(floats[kDecayAt / 4 + head % 4], floats[kDecayAt / 4 + 4 + head % 4],
                 shuffle(x, 0), shuffle(x, 1));
    if (w.lane == 0) s->decay = gates.decay, s->beta = gates.beta;
  } else if (w.warp == kGroupWarp) {
    s->z[w.lane] = silu_called(
        await_value(w.passed.in() + l.channels + head * kDim + first_column + w.lane, w.number));
  }
  w.reader.release(1, w.lane);
  readers_sync();
  step_columns(w, S);
  readers_sync();
  if (w.warp == 0) {
    const auto* x = reinterpret_cast<const float4*>(s->mixed) + w.lane % 4;
    const Eight mixed{x[0], x[4]};
    float square = squares(mixed);
    square += shuffle_xor(square, 1);
    square += shuffle_xor(square, 2);
    pass_group(s->mixed[w.lane] * norm * s->z[w.lane], square, w.number, w.lane,
               w.passed.heads() + block * 4);
  }
  float* state = l.state + s->sequence.slot * l.slot_stride + kTaps * l.channels +
                 (head * kDim + first_column + w.warp * 2) * kDim;
#pragma unroll
  for (int j = 0; j < 2; ++j) *reinterpret_cast<float4*>(state + j * kDim + 4 * w.lane) = S.of[j];
}

// Where the value of the residual stands that this thread owns.
__device__ __forceinline__ int own_place() {
  return row_place(blockIdx.x * kTileRows + threadIdx.x);
}

// Workers: a warp a super-block of all heads' columns.
__device__ __forceinline__ void mixer_out(Warp& w, const Layer& l) {
  Shared* s = shared();
  const int i = static_cast<int>(threadIdx.x);
  const float sum = records_sum(l.out, w.half_entry(), 8, w.warp % 8,
                                w.passed.heads() + w.warp * kWarp + w.lane, l.attends == 0,
                                l.head_eps, w.warp, w.number);
  put_sum(sum, w.lane, s->shares[0][w.warp]);
  w.reader.release(2, w.lane);
  readers_sync();
  if (i >= kTileRows) return;
  float total = 0;
#pragma unroll
  for (int part = 0; part < kReaders; ++part) total += s->shares[0][part][i];
  s->mine[i] += total;
  pass_value(w.passed.middle() + own_place(), s->mine[i], w.number);
}

#endif

}  // namespace tessera::gpu::run
