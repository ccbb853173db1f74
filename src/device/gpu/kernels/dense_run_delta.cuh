// The gated delta net of dense_run.h's kernel: two blocks have a head, half its columns each, whose
// states their eight row warps hold while they step.
//
// All that a step needs besides its row is on its way from the layer's beginning: the state and
// what is multiplied with rows come to L2, the log to shared memory. Alpha and beta are multiplied
// while the row is rounded, and the output's gate, of the projections' last tiles, is waited for
// when the step is done: what follows the projections is what memory idles for.
#pragma once

#include "device/gpu/kernels/dense_run_log.cuh"
#include "device/gpu/kernels/dense_run_ring.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu::dense_run {

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ bool steps_head(const Layer& l) {
  return l.attends == 0 && head_of_block() < l.heads;
}

// --- As a layer begins ---

// The channels of the block's head of one of the rows of taps and of what was convolved before.
__device__ __forceinline__ void prefetch_channels(const Layer& l, const HalfHead& at,
                                                  const float* row, int thread) {
  const int keys = l.key_heads * kDim;
  constexpr int kBytes = kDim * static_cast<int>(sizeof(float));
  prefetch_lines(row + at.key_head * kDim, kBytes, thread);
  prefetch_lines(row + keys + at.key_head * kDim, kBytes, thread);
  prefetch_lines(row + 2 * keys + at.head * kDim, kBytes, thread);
}
// To L2, and the log to shared memory: memory has a queue of weights in front of what is asked for
// when it is needed.
__device__ __forceinline__ void ask_ahead(const Layer& l, int thread) {
  Shared* s = shared();
  const HalfHead at(l);
  constexpr int kStateBytes = kHalf * kDim * static_cast<int>(sizeof(float));
  static_assert(kStateBytes == kLine * kRowWarps * kWarp);
  prefetch_lines(state_of(l, s->sequence.slot), kStateBytes, thread);
  for (int i = 0; i < 2; ++i) {
    const int each = (i == 0 ? l.alpha_type : l.beta_type) == BlockType::F32 ? 4 : 2;
    const int bytes = s->shape.embd * kSuperCols * each;
    prefetch_lines((i == 0 ? l.alpha : l.beta) + std::int64_t{at.head} * bytes, bytes, thread);
  }
  constexpr int kLines = kDim * static_cast<int>(sizeof(float)) / kLine;
  if (const int row = thread / kLines; row < 2 * kTaps)
    prefetch_channels(l, at,
                      row < kTaps ? l.taps + row * l.channels
                                  : l.state + s->sequence.slot * l.slot_stride +
                                        (row - kTaps) * l.channels,
                      thread % kLines);
  const Log* log = log_of(l, s->log);
  if (log == nullptr || thread != 0) return;
  const std::uint32_t here = shared_address(&s->logged_here);
  ++s->logs;
  barrier_expect(here, static_cast<int>(sizeof(Log)));
  copy_once(shared_address(&s->logged), log, sizeof(Log), here);
}

// --- Alpha and beta ---

__device__ __forceinline__ Share plain_share_of(int supers, int part) {
  return {supers * part / kShares, supers * (part + 1) / kShares};
}
// What a lane has of a super-block of their rows of the block's head.
struct Gates {
  Eight of[2];
  __device__ __forceinline__ Gates(const Layer& l, int supers, int super, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Planes rows{.data = j == 0 ? l.alpha : l.beta,
                        .rows = l.heads,
                        .cols = supers * kSuperCols,
                        .type = j == 0 ? l.alpha_type : l.beta_type};
      of[j] = plain_eight(rows, head_of_block(), super, lane);
    }
  }
};
// Their products with the row's super-block `x`, by kShares shares of the columns, the order in
// which project() adds them. A share of two super-blocks is two warps': one goes on with the lanes'
// sums of the other.
__device__ __forceinline__ void multiply_gates(const Gates& gates, const Eight& x, int supers,
                                               int super, int lane) {
  static_assert(kMostEmbd <= kShares + kShares / 4);
  Mixer& m = shared()->mixer;
  const int i = (super * kShares + kShares - 1) / supers;
  const Share share = plain_share_of(supers, i);
  float(*lanes)[kWarp] = m.lanes[i / 4];
  float sums[2] = {0, 0};
  if (super != share.begin) {
    await_barrier(shared_address(&m.begun[i / 4]), m.steps & 1);
    sums[0] = lanes[0][lane], sums[1] = lanes[1][lane];
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) sums[j] = dot_eight(gates.of[j], x, sums[j]);
  if (super + 1 != share.end) {
    lanes[0][lane] = sums[0], lanes[1][lane] = sums[1];
    __syncwarp();
    if (lane == 0) run::arrive(shared_address(&m.begun[i / 4]));
    return;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float sum = warp_sum(sums[j]);
    if (lane == 0) m.gates[j][i] = sum;
  }
}
__device__ __forceinline__ DeltaGates made_gates(float a, float bias, int supers, float eps) {
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
  const float factor = inverse_root(squares / static_cast<float>(supers * kSuperCols) + eps);
  return gates_of(a, bias, __fmul_rn(alpha, factor), __fmul_rn(beta, factor));
}

// --- A step ---

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

// Two values, looked at together: one after the other would be twice the way to L2 and back.
struct BothSeen {
  const Value *a, *b;
  Value x, y;
  __device__ __forceinline__ BothSeen(const Value* first, const Value* second)
      : a(first), b(second) {
    again();
  }
  __device__ __forceinline__ bool here(unsigned number) const {
    return x.y == number && y.y == number;
  }
  __device__ __forceinline__ bool any(unsigned number) const {
    return x.y == number || y.y == number;
  }
  __device__ __forceinline__ void look(unsigned number) {
    if (x.y != number) x = run::look_at(a);
    if (y.y != number) y = run::look_at(b);
  }
  __device__ __forceinline__ void again() { x = run::look_at(a), y = run::look_at(b); }
  __device__ __forceinline__ const unsigned* sign() const { return &b->y; }
};
// What the projections make for the block's half, convolved.
__device__ __forceinline__ void await_inputs(const HalfHead& at, const Channel& key,
                                             const Channel& value, float* newest, unsigned number,
                                             int i) {
  Mixer& m = shared()->mixer;
  const Value* in = values(kAt.in);
  BothSeen seen(in + key.index, in + (i < kHalf ? value : key).index);
  await_all(seen, number);
  const float x = __uint_as_float(seen.x.x), y = __uint_as_float(seen.y.x);
  (i < kDim ? m.q[i] : m.k[i - kDim]) = key.convolved(x);
  if (at.writes_keys) newest[key.index] = x;
  if (i >= kHalf) return;
  m.v[i] = value.convolved(y);
  newest[value.index] = y;
}
// A group of 32 columns of the half, by a warp each, when its gate is there.
__device__ __forceinline__ void pass_mixed(const Value* gate, float norm, unsigned number, int warp,
                                           int lane) {
  const Mixer& m = shared()->mixer;
  const auto* from = reinterpret_cast<const float4*>(m.mixed + warp * kWarp) + lane % 4;
  float square = squares(Eight{from[0], from[4]});
  square += shuffle_xor(square, 1);
  square += shuffle_xor(square, 2);
  const int i = warp * kWarp + lane;
  const int group = static_cast<int>(blockIdx.x) * (kHalf / kWarp) + warp;
  const float open = silu_called(run::await_value(gate + i, number));
  run::pass_group_here(m.mixed[i] * norm * open, square, number, lane,
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
  // A query's channel or a key's; the first warps have values, too.
  const Channel key(l, ring, newest, (i < kDim ? i : keys + i - kDim) + at.key_head * kDim);
  const Channel value(l, ring, newest, 2 * keys + own + i % kHalf);
  const float norm = warp < kHalf / kWarp ? l.head_norm[at.column + i] : 0.0f;
  const float a = l.a[at.head], bias = l.dt_bias[at.head];
  Log* log = log_of(l, s->log);
  row_warps_sync();  // all have their shares of alpha and beta
  if (i == 0) ++m.steps;
  if (warp == kRowWarps - 1) {
    const DeltaGates gates = made_gates(a, bias, supers, l.eps);
    if (lane == 0) m.decay = gates.decay, m.beta = gates.beta;
  }
  int logged = 0;
  if (log != nullptr) {
    await_barrier(shared_address(&s->logged_here), (s->logs - 1) & 1);
    logged = s->logged.n;
  }
#pragma unroll 1
  for (int step = 0; step < logged; ++step) state.step_again(s->logged.steps[step], warp, lane);
  await_inputs(at, key, value, ring + newest * l.channels, number, i);
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
  if (warp < kHalf / kWarp) pass_mixed(values(kAt.in) + l.channels + own, norm, number, warp, lane);
  if (to == nullptr) {
    state.store(state_of(l, s->sequence.slot), warp, lane);
  } else if (warp == kRowWarps - 1) {
    reinterpret_cast<float4*>(to->keys)[lane] = make_float4(of.k[0], of.k[1], of.k[2], of.k[3]);
    if (lane == 0) to->decay = gates.decay;
  }
  if (log != nullptr && i == 0) log->n = to == nullptr ? 0 : logged + 1;
}

#endif

}  // namespace tessera::gpu::dense_run
