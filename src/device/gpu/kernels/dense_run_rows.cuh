// What the eight warps of dense_run.h's kernel do that bring rows: they wait for what other blocks
// make, round it for the products, part by part, and step the delta net.
#pragma once

#include "device/gpu/kernels/dense_run_attention.cuh"
#include "device/gpu/kernels/dense_run_log.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu::dense_run {

#ifdef TESSERA_GPU_WGMMA

// One of a part's super-blocks is there.
__device__ __forceinline__ void arrive_part(int part, int lane) {
  __syncwarp();
  if (lane == 0) run::arrive(shared_address(&shared()->parts[part]));
}

__device__ __forceinline__ Share plain_share_of(int supers, int part) {
  return {supers * part / kShares, supers * (part + 1) / kShares};
}

// A row of the residual: from other blocks or (passed is null) from memory, and the norm's weights.
struct Residual {
  const Value* passed;
  const float *memory, *norm;
  unsigned number;
  __device__ __forceinline__ Eight load(int super, int lane) const {
    return passed != nullptr ? run::await_eight(passed, super, lane, number)
                             : load_eight(memory + super * kSuperCols, lane);
  }
};

// A layer's input, the output of the one before under that one's number, and what its mixer leaves.
__device__ __forceinline__ Residual input_of(int layer) {
  return {layer > 0 ? values(kAt.residual) : nullptr, shared()->hidden,
          LayerPlace(layer).layer().norm, number_of(layer - 1)};
}
__device__ __forceinline__ Residual middle_of(int layer) {
  return {values(kAt.middle), nullptr, LayerPlace(layer).layer().ffn_norm, number_of(layer)};
}

// Norms and rounds it.
static __device__ __noinline__ void take_residual(int layer, int part) {
  const Residual row = part == kPartIn ? input_of(layer) : middle_of(layer);
  Shared* s = shared();
  const int warp = run::this_warp(), lane = run::this_lane();
  const int supers = s->shape.embd, first = first_part(part, supers);
#pragma unroll 1
  for (int super = warp; super < supers; super += kRowWarps) {
    const Eight weight = load_eight(row.norm + super * kSuperCols, lane);
    const Eight v = row.load(super, lane);
    const float square = sum_of_groups(squares(v));
    round_super(times(v, weight), 1.0f, lane, s->rows[kMostHidden + super]);
    if (lane == 0) s->squares[super] = square;
    arrive_part(part + (super < first ? 0 : 1), lane);
  }
}

// Its products with alpha's and beta's rows of the block's head: each warp two of kShares shares of
// the columns, the order in which project() adds them. The row is read once more, which is sooner
// than to wait for these rows while it is rounded.
static __device__ __noinline__ void multiply_gates(int layer) {
  const Residual row = input_of(layer);
  const Layer& l = LayerPlace(layer).layer();
  const int supers = shared()->shape.embd, warp = run::this_warp(), lane = run::this_lane();
#pragma unroll 1
  for (int i = warp; i < kShares; i += kRowWarps) {
    const Share share = plain_share_of(supers, i);
    float sums[2] = {0, 0};
#pragma unroll 1
    for (int super = share.begin; super < share.end; ++super) {
      Eight plain[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Planes of{.data = j == 0 ? l.alpha : l.beta,
                        .rows = l.heads,
                        .cols = supers * kSuperCols,
                        .type = j == 0 ? l.alpha_type : l.beta_type};
        plain[j] = plain_eight(of, head_of_block(), super, lane);
      }
      const Eight x = times(row.load(super, lane), load_eight(row.norm + super * kSuperCols, lane));
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[j] = dot_eight(plain[j], x, sums[j]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sum = warp_sum(sums[j]);
      if (lane == 0) shared()->mixer.gates[j][i] = sum;
    }
  }
}

// Records of `n` super-blocks.
__device__ __forceinline__ void take_records(const Record* from, int n, int part, int each,
                                             bool heads, float eps, unsigned number) {
  const int lane = run::this_lane();
#pragma unroll 1
  for (int super = run::this_warp(); super < n; super += kRowWarps) {
    const Record v = run::await_record(from + super * kWarp + lane, number);
    __syncwarp();
    run::put_records(v, lane, heads, eps, offset_of(shared()->rows[super]));
    arrive_part(part + super / each, lane);
  }
}
static __device__ __noinline__ void take_heads(int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const int n = shared()->shape.mixed;
  take_records(records(kAt.heads), n, kPartOut, n / 2, l.attends == 0, l.head_eps,
               number_of(layer));
}
// The FFN's columns: groups, then those that are passed as they are.
static __device__ __noinline__ void take_hidden(int layer) {
  const Shape& of = shared()->shape;
  const int rounded = of.up_rounds * 2 * kTileRows * kBlocks / kSuperCols;
  const int lane = run::this_lane();
  take_records(records(kAt.hidden), rounded, kPartDown, kDownPart, false, 0.0f, number_of(layer));
#pragma unroll 1
  for (int super = rounded + run::this_warp(); super < of.hidden; super += kRowWarps) {
    const Eight v = run::await_eight(values(kAt.left), super - rounded, lane, number_of(layer));
    round_super(v, 1.0f, lane, shared()->rows[super]);
    arrive_part(kPartDown + super / kDownPart, lane);
  }
}

// --- The delta net ---

// A channel of the convolution, and what the rows before this one come to.
struct Channel {
  int index;
  float before, newest;
  __device__ __forceinline__ Channel(const Layer& l, const float* ring, int newest_row, int channel)
      : index(channel), before(0), newest(l.taps[(kTaps - 1) * l.channels + channel]) {
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j)
      before = fmaf(l.taps[j * l.channels + index],
                    ring[(newest_row + 1 + j) % kTaps * l.channels + index], before);
  }
  __device__ __forceinline__ float convolved(float x) const {
    return silu_called(fmaf(newest, x, before));
  }
};

__device__ __forceinline__ DeltaGates made_gates(const Layer& l, const HalfHead& at, int supers) {
  const Shared* s = shared();
  float alpha = 0, beta = 0, squares = 0;
#pragma unroll 4
  for (int i = 0; i < kShares; ++i) {
    alpha += s->mixer.gates[0][i];
    beta += s->mixer.gates[1][i];
    float sum = 0;
    const Share share = plain_share_of(supers, i);
    for (int super = share.begin; super < share.end; ++super) sum += s->squares[super];
    squares += sum;
  }
  const float factor = inverse_root(squares / static_cast<float>(supers * kSuperCols) + l.eps);
  return gates_of(l.a[at.head], l.dt_bias[at.head], __fmul_rn(alpha, factor),
                  __fmul_rn(beta, factor));
}

// The block's half of the state, and the head's rows of alpha and beta, into L2: memory has a queue
// of weights in front of what is asked for when it is needed.
__device__ __forceinline__ void prefetch_delta(const Layer& l, int thread) {
  constexpr int kLine = 128;
  const HalfHead at(l);
  const float* state = state_of(l, shared()->sequence.slot);
  static_assert(kHalf * kDim * 4 == kLine * kRowWarps * kWarp);
  prefetch_line(reinterpret_cast<const char*>(state) + thread * kLine);
  for (int i = 0; i < 2; ++i) {
    const int each = (i == 0 ? l.alpha_type : l.beta_type) == BlockType::F32 ? 4 : 2;
    const int bytes = shared()->shape.embd * kSuperCols * each;
    const std::byte* row = (i == 0 ? l.alpha : l.beta) + std::int64_t{at.head} * bytes;
    if (thread * kLine < bytes) prefetch_line(reinterpret_cast<const char*>(row) + thread * kLine);
  }
}

// What the projections make for the block's half: convolved, or the gate opened.
__device__ __forceinline__ void await_inputs(const Layer& l, const HalfHead& at,
                                             const Channel& key, const Channel& value,
                                             float* newest, unsigned number, int i) {
  Mixer& m = shared()->mixer;
  const Value* in = values(kAt.in);
  const float x = run::await_value(in + key.index, number);
  (i < kDim ? m.q[i] : m.k[i - kDim]) = key.convolved(x);
  if (at.writes_keys) newest[key.index] = x;
  if (i < kHalf) {
    const float v = run::await_value(in + value.index, number);
    m.v[i] = value.convolved(v);
    newest[value.index] = v;
  } else if (const int gate = i - kHalf; gate < kHalf) {
    m.z[gate] = silu_called(
        run::await_value(in + l.channels + at.head * kDim + at.column + gate, number));
  }
}
// A group of 32 columns of the half, by a warp each.
__device__ __forceinline__ void pass_mixed(float norm, unsigned number, int warp, int lane) {
  const Mixer& m = shared()->mixer;
  const auto* from = reinterpret_cast<const float4*>(m.mixed + warp * kWarp) + lane % 4;
  float square = squares(Eight{from[0], from[4]});
  square += shuffle_xor(square, 1);
  square += shuffle_xor(square, 2);
  const int i = warp * kWarp + lane;
  const int group = static_cast<int>(blockIdx.x) * (kHalf / kWarp) + warp;
  run::pass_group_here(m.mixed[i] * norm * m.z[i], square, number, lane,
                       records(kAt.heads) + group * 4);
}

static __device__ __noinline__ void step_delta(int layer) {
  Shared* s = shared();
  const Layer& l = LayerPlace(layer).layer();
  const int supers = s->shape.embd, warp = run::this_warp(), lane = run::this_lane();
  const unsigned number = number_of(layer);
  Mixer& m = s->mixer;
  const HalfHead at(l);
  const int i = warp * kWarp + lane, keys = l.key_heads * kDim;
  float* ring = l.state + s->sequence.slot * l.slot_stride;
  const int newest = s->sequence.first_position % kTaps;
  const int own = at.head * kDim + at.column;
  State state(state_of(l, s->sequence.slot), warp, lane);
  // A query's channel or a key's; then the first warps have values, the next ones the head's gate.
  const Channel key(l, ring, newest, (i < kDim ? i : keys + i - kDim) + at.key_head * kDim);
  const Channel value(l, ring, newest, 2 * keys + own + i % kHalf);
  const float norm = warp < kHalf / kWarp ? l.head_norm[at.column + i] : 0.0f;
  row_warps_sync();  // all have their shares of alpha and beta, and so the row
  Log* log = log_of(l, s->log);
  const int logged = log == nullptr ? 0 : log->n;
  LoggedStep* again = room<Log>().steps;
  bring_log(log, logged, again);
  if (warp == kRowWarps - 1) {
    const DeltaGates gates = made_gates(l, at, supers);
    if (lane == 0) m.decay = gates.decay, m.beta = gates.beta;
  }
  row_warps_sync();
#pragma unroll 1
  for (int step = 0; step < logged; ++step) state.step_again(again[step], warp, lane);
  await_inputs(l, at, key, value, ring + newest * l.channels, number, i);
  row_warps_sync();
  const DeltaGates gates{m.decay, m.beta};
  const Keys of = load_keys(m.q, m.k, lane);
  LoggedStep* to = log == nullptr || logged == kMostLogged ? nullptr : log->steps + logged;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int column = (warp * kRounds + r) * kColumns + lane / kColumnLanes;
    float delta;
    const float out = stepped(state.S[r], of, gates, m.v[column], lane, delta);
    if (lane % kColumnLanes != 0) continue;
    m.mixed[column] = out;
    if (to != nullptr) to->delta[column] = delta;
  }
  row_warps_sync();
  if (warp < kHalf / kWarp) pass_mixed(norm, number, warp, lane);
  if (to == nullptr) {
    state.store(state_of(l, s->sequence.slot), warp, lane);
  } else if (warp == kRowWarps - 1) {
    reinterpret_cast<float4*>(to->keys)[lane] = make_float4(of.k[0], of.k[1], of.k[2], of.k[3]);
    if (lane == 0) to->decay = gates.decay;
  }
  if (log != nullptr && i == 0) log->n = to == nullptr ? 0 : logged + 1;
}

// --- A layer ---

__device__ __forceinline__ bool steps_head(const Layer& l) {
  return l.attends == 0 && head_of_block() < l.heads;
}
static __device__ __noinline__ void mix(int layer) {
  const Layer& l = LayerPlace(layer).layer();
  if (l.attends != 0) {
    attend_and_combine(layer);
  } else if (steps_head(l)) {
    multiply_gates(layer);
    step_delta(layer);
  }
}
// The number alone is live across calls: what else is, they would have to save.
static __device__ __noinline__ void bring_layer(int n) {
  await_description(n);
  if (const Layer& l = LayerPlace(n).layer(); steps_head(l))
    prefetch_delta(l, static_cast<int>(threadIdx.x));
  take_residual(n, kPartIn);
  mix(n);
  take_heads(n);
  take_residual(n, kPartUp);
  take_hidden(n);
  leave_layer(n, run::this_lane());
}
__device__ __forceinline__ void bring_rows(int layers) {
  Shared* s = shared();
  const int i = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.x) * kTileRows + i % kTileRows +
                     i / kTileRows * (kBlocks * kTileRows);
  if (i < kMostOut * kTileRows && column < s->shape.embd * kSuperCols)
    s->mine[i / kTileRows][i % kTileRows] = s->hidden[column];
  row_warps_sync();
#pragma unroll 1
  for (int n = 0; n < layers; ++n) bring_layer(n);
}

#endif

}  // namespace tessera::gpu::dense_run
