// The delta rule for several sequences of one row: a block takes a whole head of 128 x 128.
//
// The head's S, 64 KB, comes to shared memory in the background, each lane's own pieces, so that it
// takes no registers meanwhile: one half is asked for before the row is there, the other half only
// behind the row, which would otherwise wait for all of S. q and k are convolved once a head instead
// of once for every 32 columns. The block has the whole head, so it also norms, gates and rounds it
// for the product behind, which spares that a kernel. Floor of 8 rows of 32 heads: 16.8 MB read and
// 16.8 MB written, 7.3 us.
#include <algorithm>

#include "device/gpu/kernels/delta_step.cuh"
#include "device/gpu/kernels/project_supers.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/super_input.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * kWarp;
constexpr int kOwn = kHead / kWarps;  // columns a warp
constexpr int kChannels = 3 * kHead;
static_assert(kOwn == 2 * kColumns && kThreads - kChannels == kHead);

constexpr int kGateSupers = 8;  // of a row that alpha and beta are products of: a warp each
static_assert(2 * kGateSupers == kWarps);

struct alignas(16) Room {
  float state[kHead][kHead];
  float convolved[kChannels];  // q, k, v
  float gate[kHead];           // open
  float out[kHead];
  // Of alpha and beta, and of the row's squares, each super-block's part.
  float products[2][kGateSupers], squares[kGateSupers];
};

// Those of a warp's columns that it steps at a time, from `column` on.
__device__ __forceinline__ void ask_columns(const float* state, int column, int lane, Room& room) {
#pragma unroll
  for (int c = column; c < column + kColumns; ++c)
    copy_async_once(&room.state[c][4 * lane], state + c * kHead + 4 * lane);
  copy_commit();
}

// Of thread i < kChannels: its channel of the convolution, and what of it is there before the row.
struct Channel {
  int index;
  float taps[kEarlyWidth], past[kEarlyWidth - 1];
};
__device__ __forceinline__ Channel load_channel(const DeltaArgs& args, const DeltaShape& s,
                                                const BlockPlace& at, const float* ring, int i) {
  const int keys = s.key_heads * kHead;
  Channel c;
  c.index = i < kHead       ? at.key_head * kHead + i
            : i < 2 * kHead ? keys + at.key_head * kHead + i - kHead
                            : 2 * keys + at.head * kHead + i - 2 * kHead;
#pragma unroll
  for (int j = 0; j < kEarlyWidth; ++j) c.taps[j] = args.taps[j * s.channels + c.index];
#pragma unroll
  for (int j = 0; j + 1 < kEarlyWidth; ++j)
    c.past[j] = ring[(at.newest + 1 + j) % kEarlyWidth * s.channels + c.index];
  return c;
}
__device__ __forceinline__ float convolve(const Channel& c, float x) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j + 1 < kEarlyWidth; ++j) sum = fmaf(c.taps[j], c.past[j], sum);
  return silu_called(fmaf(c.taps[kEarlyWidth - 1], x, sum));
}

// A warp's part of alpha, or of beta: fetched ahead of the row; then its product with the row, whose
// input is rms_norm's, as makes_gates() has seen.
struct GatePart {
  const GateProducts& of;
  int which, super;
  __device__ __forceinline__ GatePart(const GateProducts& gates, int warp)
      : of(gates), which(warp / kGateSupers), super(warp % kGateSupers) {}
  __device__ __forceinline__ const Matrix& matrix() const {
    return which == 0 ? of.alpha : of.beta;
  }
  __device__ __forceinline__ Eight weights(int head, int lane) const {
    const Matrix& m = matrix();
    const Planes plain{.data = m.data, .rows = m.rows, .cols = m.cols, .type = m.type};
    return plain_eight(plain, head, super, lane);
  }
  __device__ __forceinline__ void fetch(int head, int lane) const {
    const Matrix& m = matrix();
    const int bytes = m.type == BlockType::F32 ? 4 : 2;
    const std::byte* at = m.data + (std::int64_t{head} * m.cols + super * kSuperCols) * bytes;
    if (lane < kSuperCols * bytes / 128) prefetch_line(at + lane * 128);
  }
  __device__ __forceinline__ Eight load(int row, int lane) const {
    return load_input(of.input, row, super, lane).x;
  }
  __device__ __forceinline__ void make(const Eight& input, int head, int lane, Room& room) const {
    const Eight w = weights(head, lane);
    float square = squares(input);
    const Eight x = times(input, load_eight(of.input.weight + super * kSuperCols, lane));
    const float product = warp_sum(dot_eight(w, x, 0.0f));
    square = sum_of_groups(square);
    if (lane != 0) return;
    room.products[which][super] = product;
    if (which == 0) room.squares[super] = square;
  }
};
// Behind a barrier.
__device__ __forceinline__ GateInputs made_gates(const GateProducts& of, const Room& room) {
  float alpha = 0, beta = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kGateSupers; ++i) {
    alpha += room.products[0][i];
    beta += room.products[1][i];
    squares += room.squares[i];
  }
  const float factor =
      inverse_root(squares / static_cast<float>(of.input.cols) + of.input.eps);
  return {alpha * factor, beta * factor};
}

// kColumns columns of S from `column` on, stepped and stored; what q reads of them to room.out.
__device__ __forceinline__ void step_columns(const Keys& keys, const DeltaGates& gates, int column,
                                             int lane, float* state, Room& room) {
  float S[kColumns][kParts];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) load_column<kParts>(room.state[column + j], kHead, lane, S[j]);
  const float out =
      stepped(S, keys, gates, room.convolved[2 * kHead + column + lane / kColumnLanes], lane);
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    store_once(state + (column + j) * kHead + kParts * lane,
               make_float4(S[j][0], S[j][1], S[j][2], S[j][3]));
  if (lane % kColumnLanes == 0) room.out[column + lane / kColumnLanes] = out;
}

// The head as round_rows() rounds it, by one warp: half a super-block, by its lower half.
__device__ __forceinline__ void round_head(const Room& room, const Eight& weight, float eps,
                                           int head, int lane, char* row) {
  const int half = lane % (kWarp / 2);
  const Input in{.kind = InputKind::gated_rms, .eps = eps, .head_dim = kHead};
  float factor = 0;
  const Eight v =
      normed_input(in, {load_eight(room.out, half), load_eight(room.gate, half)}, weight, factor);
  const RoundedGroup group = rounded_group(v);
  if (lane == half)
    put_group(group, factor, lane % 4, head % 2 * 4 + lane / 4, row + head / 2 * kSuperBytes);
}

// rounded: rounded_row_bytes() a row, or null.
__global__ void __launch_bounds__(kThreads, 2)
    head_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, std::byte* rounded) {
  TESSERA_DYNAMIC_SHARED(char, memory);
  Room& room = *reinterpret_cast<Room*>(memory);
  const DeltaShape s = shape_of(args.spec);
  const int i = static_cast<int>(threadIdx.x), warp = i / kWarp, lane = i % kWarp;
  const int head = static_cast<int>(blockIdx.x), column = warp * kOwn;
  // The step's tables and the state are older than the kernel before this one.
  const Sequence sequence = args.step.sequences[blockIdx.y];
  float* ring = args.state + sequence.slot * args.slot_stride;
  float* state = ring + s.width * s.channels + head * kHead * kHead;
  ask_columns(state, column, lane, room);
  const BlockPlace at = block_place(s, sequence, head, 0);
  const bool convolves = i < kChannels;
  Channel channel{};
  if (convolves) channel = load_channel(args, s, at, ring, i);
  Eight weight{};
  if (rounded != nullptr && warp == 0) weight = load_eight(args.norm, lane % (kWarp / 2));
  const float a = args.a[head], bias = args.dt_bias[head];
  const GatePart part(args.gates, warp);
  const bool makes = args.gates.alpha.data != nullptr;
  if (makes) part.fetch(head, lane);
  chain_wait();
  chain_trigger();
  const std::int64_t row = sequence.first_row;
  const std::int64_t values = (row * s.value_heads + head) * kHead;
  GateInputs inputs{};
  if (!makes) inputs = load_gates(args, s, sequence.first_row, head);
  float* gate = convolves || args.gate == nullptr ? nullptr : args.gate + values + i - kChannels;
  float x = 0;
  if (convolves)
    x = args.qkv[row * s.channels + channel.index];
  else if (gate != nullptr)
    x = *gate;
  Eight input{};
  if (makes) input = part.load(sequence.first_row, lane);
  ask_columns(state, column + kColumns, lane, room);
  if (convolves) {
    room.convolved[i] = convolve(channel, x);
    if (i >= 2 * kHead || at.writes_keys) ring[at.newest * s.channels + channel.index] = x;
  } else if (gate != nullptr) {
    *gate = room.gate[i - kChannels] = silu_called(x);
  }
  if (makes) part.make(input, head, lane, room);
  __syncthreads();
  if (makes) inputs = made_gates(args.gates, room);
  const DeltaGates gates = gates_of(a, bias, inputs.alpha, inputs.beta);
  const Keys keys = load_keys(room.convolved, room.convolved + kHead, lane);
  copy_wait<1>();
  step_columns(keys, gates, column, lane, state, room);
  copy_wait<0>();
  step_columns(keys, gates, column + kColumns, lane, state, room);
  __syncwarp();
  if (lane < kOwn) args.out[values + column + lane] = room.out[column + lane];
  if (rounded == nullptr) return;
  __syncthreads();
  if (warp == 0)
    round_head(room, weight, args.eps, head, lane,
               rounded_row(rounded, s.value_heads * kHead, static_cast<int>(row)));
}

}  // namespace

bool goes_by_heads(const Launch& launch, const GatedDeltaSpec& spec, const StepRows& step) {
  if (step.max_sequence_rows != 1 || step.n_sequences == 1 || spec.dim_k != kHead ||
      spec.dim_v != kHead || spec.conv_width != kEarlyWidth)
    return false;
  constexpr int kBlocks = 4, kEach = 3;  // of recurrent_kernel: a head, a multiprocessor
  return kBlocks * spec.n_value_head * step.n_sequences >
             kEach * std::max(1, launch.multiprocessors) &&
         2 * sizeof(Room) <= shared_limit(launch);
}

bool leaves_rounded(const Launch& launch, const GatedDeltaSpec& spec, const StepRows& step) {
  return goes_by_heads(launch, spec, step) && step.rows <= kDecodeRows &&
         spec.value_width() % kSuperCols == 0;
}

bool makes_gates(const Launch& launch, const DeltaArgs& args, const GateProducts& gates) {
  const auto plain = [&](const Matrix& m) {
    return is_plain(m.type) && m.rows == args.spec.n_value_head && m.cols == gates.input.cols;
  };
  return goes_by_heads(launch, args.spec, args.step) && args.step.rows <= kDecodeRows &&
         gates.input.kind == InputKind::rms_norm &&
         gates.input.cols == kGateSupers * kSuperCols && plain(gates.alpha) && plain(gates.beta);
}

GpuError delta_heads(const Launch& launch, const DeltaArgs& args) {
  const bool leaves =
      args.norm != nullptr && args.gate != nullptr && leaves_rounded(launch, args.spec, args.step);
  return launch_kernel(launch, head_kernel,
                       dim3(static_cast<unsigned>(args.spec.n_value_head),
                            static_cast<unsigned>(args.step.n_sequences)),
                       dim3(kThreads), sizeof(Room), args,
                       leaves ? static_cast<std::byte*>(launch.workspace) : nullptr);
}

}  // namespace tessera::gpu
