// The gated delta rule row by row: S in registers, one pass over it a row.
//
// A block takes 32 columns of one value head's S for one sequence; a warp's lanes stand along dim_k
// and each warp holds four columns. Where every sequence has one row (decode) the convolution and
// its ring update are part of the same kernel; so many sequences that their blocks would not stand
// side by side take whole heads where they can (delta_head.cu). Floor of a decode row of 32 heads
// of 128 x 128: 2 MB read and 2 MB written, 0.9 us.
#include "device/gpu/kernels/delta_step.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockColumns = kThreads / kWarp * kColumns;
constexpr int kMaxDim = 256;

__global__ void __launch_bounds__(256)
    convolve_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, float* conv) {
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  const int row = static_cast<int>(blockIdx.x);
  const Sequence sequence = args.step.sequences[args.step.sequence[row]];
  const float* ring = args.state + sequence.slot * args.slot_stride;
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c < s.channels)
    conv[static_cast<std::int64_t>(row) * s.channels + c] =
        convolved(args, s, sequence, ring, row - sequence.first_row, c);
}

// The same for the usual width of 4: a thread goes down kConvRows rows of a channel and reads each
// input once.
constexpr int kConvRows = 16;
__global__ void __launch_bounds__(256)
    convolve_four_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, float* conv) {
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  const int first = static_cast<int>(blockIdx.x) * kConvRows;
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= s.channels) return;
  float taps[4], x[kConvRows], past[3] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) taps[j] = args.taps[j * s.channels + c];
#pragma unroll
  for (int i = 0; i < kConvRows; ++i)
    x[i] = first + i < args.step.rows
               ? args.qkv[static_cast<std::int64_t>(first + i) * s.channels + c]
               : 0.0f;
  int current = -1;
#pragma unroll
  for (int i = 0; i < kConvRows; ++i) {
    const int row = first + i;
    if (row >= args.step.rows) break;
    const int of = args.step.sequence[row];
    if (of != current) {
      const Sequence sequence = args.step.sequences[of];
      const float* ring = args.state + sequence.slot * args.slot_stride;
      const int t = row - sequence.first_row;
#pragma unroll
      for (int j = 0; j < 3; ++j)
        past[j] = t - 3 + j >= 0 ? args.qkv[static_cast<std::int64_t>(row - 3 + j) * s.channels + c]
                                 : ring[(sequence.first_position + t + 1 + j) % 4 * s.channels + c];
      current = of;
    }
    float sum = fmaf(taps[0], past[0], 0.0f);
    sum = fmaf(taps[1], past[1], sum);
    sum = fmaf(taps[2], past[2], sum);
    conv[static_cast<std::int64_t>(row) * s.channels + c] = silu(fmaf(taps[3], x[i], sum));
    past[0] = past[1];
    past[1] = past[2];
    past[2] = x[i];
  }
}

// Shared by the block's warps in decode: the convolved q and k of the head and v of its columns.
struct alignas(16) Convolved {
  float q[kMaxDim], k[kMaxDim], v[kBlockColumns];
};

// The channels that a thread convolves in decode, and what of them is there before this step.
constexpr int kRounds = 2;  // channels a thread, at most
struct EarlyChannels {
  float taps[kRounds][kEarlyWidth], past[kRounds][kEarlyWidth - 1];
};

// Channel i of the block's 2 * dim_k + kBlockColumns; -1: past the head's columns.
__device__ __forceinline__ int channel_of(const DeltaShape& s, const BlockPlace& at, int i) {
  const int keys = s.key_heads * s.dim_k;
  if (i < s.dim_k) return at.key_head * s.dim_k + i;
  if (i < 2 * s.dim_k) return keys + at.key_head * s.dim_k + i - s.dim_k;
  const int v = at.column + i - 2 * s.dim_k;
  return i < 2 * s.dim_k + kBlockColumns && v < s.dim_v ? 2 * keys + at.head * s.dim_v + v : -1;
}

__device__ __forceinline__ bool early_channels(const DeltaShape& s) {
  return s.width == kEarlyWidth && 2 * s.dim_k + kBlockColumns <= kRounds * kThreads;
}

__device__ __forceinline__ void load_early(const DeltaArgs& args, const DeltaShape& s,
                                           const BlockPlace& at, const float* ring,
                                           EarlyChannels& early) {
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int c = channel_of(s, at, round * kThreads + static_cast<int>(threadIdx.x));
    if (c < 0) continue;
#pragma unroll
    for (int j = 0; j < kEarlyWidth; ++j) early.taps[round][j] = args.taps[j * s.channels + c];
#pragma unroll
    for (int j = 0; j + 1 < kEarlyWidth; ++j)
      early.past[round][j] = ring[(at.newest + 1 + j) % kEarlyWidth * s.channels + c];
  }
}

__device__ __forceinline__ void put_channel(const DeltaShape& s, const BlockPlace& at, float* ring,
                                            int i, int c, float x, float value, Convolved& out) {
  (i < s.dim_k ? out.q[i] : i < 2 * s.dim_k ? out.k[i - s.dim_k] : out.v[i - 2 * s.dim_k]) = value;
  if (i >= 2 * s.dim_k || at.writes_keys) ring[at.newest * s.channels + c] = x;
}

__device__ __forceinline__ void convolve_early(const DeltaShape& s, const BlockPlace& at,
                                               const float* row, float* ring,
                                               const EarlyChannels& early, Convolved& out) {
  float x[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int c = channel_of(s, at, round * kThreads + static_cast<int>(threadIdx.x));
    x[round] = c < 0 ? 0.0f : row[c];
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = round * kThreads + static_cast<int>(threadIdx.x), c = channel_of(s, at, i);
    if (c < 0) continue;
    float sum = 0;
#pragma unroll
    for (int j = 0; j + 1 < kEarlyWidth; ++j)
      sum = fmaf(early.taps[round][j], early.past[round][j], sum);
    sum = fmaf(early.taps[round][kEarlyWidth - 1], x[round], sum);
    put_channel(s, at, ring, i, c, x[round], silu_called(sum), out);
  }
}

// Any width. Finds its place for itself: what is handed to a call would take registers of all.
static __device__ __noinline__ void convolve_one(const DeltaArgs& args, Convolved& out) {
  const DeltaShape s = shape_of(args.spec);
  const Sequence sequence = args.step.sequences[blockIdx.z];
  const BlockPlace at = block_place(s, sequence, static_cast<int>(blockIdx.y),
                                    static_cast<int>(blockIdx.x) * kBlockColumns);
  float* ring = args.state + sequence.slot * args.slot_stride;
  const float* row = args.qkv + static_cast<std::int64_t>(sequence.first_row) * s.channels;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * s.dim_k + kBlockColumns; i += kThreads) {
    const int c = channel_of(s, at, i);
    if (c >= 0)
      put_channel(s, at, ring, i, c, row[c], convolved(args, s, sequence, ring, 0, c), out);
  }
}

// The gate's value that this thread opens, of one of the block's columns; null: none.
__device__ __forceinline__ float* gate_of(const DeltaArgs& args, const DeltaShape& s,
                                          const Sequence& sequence, int head, int column) {
  const int c = column + kThreads - 1 - static_cast<int>(threadIdx.x);
  if (args.gate == nullptr || c >= min(column + kBlockColumns, s.dim_v)) return nullptr;
  const std::int64_t row = sequence.first_row;
  return args.gate + (row * s.value_heads + head) * s.dim_v + c;
}

// kParts: elements of dim_k a lane.
template <int kParts, bool kDecode>
__global__ void __launch_bounds__(kThreads, kParts <= 4 ? 3 : 1)
    recurrent_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, const float* conv) {
  __shared__ Convolved shared;
  const DeltaShape s = shape_of(args.spec);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const int column = first_column + warp * kColumns;
  const int head = static_cast<int>(blockIdx.y);
  // The step's tables and the state are older than the kernel before this one.
  if constexpr (!kDecode) {
    chain_wait();
    chain_trigger();
  }
  const Sequence sequence = args.step.sequences[blockIdx.z];
  float* ring = args.state + sequence.slot * args.slot_stride;
  float* state = ring + s.width * s.channels + static_cast<std::int64_t>(head) * s.dim_k * s.dim_v;
  const int key_head = key_head_of(s, head);
  const int keys = s.key_heads * s.dim_k;

  float S[kColumns][kParts];
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    load_column<kParts>(state + (column + j) * s.dim_k, column + j < s.dim_v ? s.dim_k : 0, lane,
                        S[j]);
  DeltaGates first_gates{};
  if constexpr (kDecode) {
    const bool ahead = early_channels(s);
    const BlockPlace at = block_place(s, sequence, head, first_column);
    const float* row = args.qkv + static_cast<std::int64_t>(sequence.first_row) * s.channels;
    EarlyChannels early;
    if (ahead) load_early(args, s, at, ring, early);
    const float a = args.a[head], bias = args.dt_bias[head];
    chain_wait();
    chain_trigger();
    const GateInputs inputs = load_gates(args, s, sequence.first_row, head);
    float* gate = gate_of(args, s, sequence, head, first_column);
    const float z = gate == nullptr ? 0.0f : *gate;
    if (ahead)
      convolve_early(s, at, row, ring, early, shared);
    else
      convolve_one(args, shared);
    if (gate != nullptr) *gate = silu_called(z);
    first_gates = gates_of(a, bias, inputs.alpha, inputs.beta);
    __syncthreads();
  } else {
    float* gate = gate_of(args, s, sequence, head, first_column);
    for (int t = 0; gate != nullptr && t < sequence.n_rows; ++t)
      gate[t * s.value_heads * s.dim_v] = silu(gate[t * s.value_heads * s.dim_v]);
  }
  const float q_scale = 1.0f / sqrtf(static_cast<float>(s.dim_k));
  const int rows = kDecode ? 1 : sequence.n_rows;
  for (int t = 0; t < rows; ++t) {
    const std::int64_t row = sequence.first_row + t;
    const float* from = conv + row * s.channels;
    const float* q_row = kDecode ? shared.q : from + key_head * s.dim_k;
    const float* k_row = kDecode ? shared.k : from + keys + key_head * s.dim_k;
    float q[kParts], k[kParts], qq = 0, kk = 0;
    load_column<kParts>(q_row, s.dim_k, lane, q);
    load_column<kParts>(k_row, s.dim_k, lane, k);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      qq = fmaf(q[i], q[i], qq);
      kk = fmaf(k[i], k[i], kk);
    }
    const float q_factor = q_scale * inverse_root(warp_sum(qq) + kL2Eps);
    const float k_factor = inverse_root(warp_sum(kk) + kL2Eps);
    const DeltaGates gates = kDecode ? first_gates : gates_of(args, s, static_cast<int>(row), head);
    float read[kColumns];
#pragma unroll
    for (int i = 0; i < kParts; ++i) q[i] *= q_factor, k[i] *= k_factor;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      read[j] = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) read[j] = fmaf(S[j][i], k[i], read[j]);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) read[j] = warp_sum(read[j]);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int at = min(column + j, s.dim_v - 1);
      const float v =
          kDecode ? shared.v[warp * kColumns + j] : from[2 * keys + head * s.dim_v + at];
      const float delta = gates.beta * (v - gates.decay * read[j]);
      read[j] = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        S[j][i] = fmaf(k[i], delta, S[j][i] * gates.decay);
        read[j] = fmaf(S[j][i], q[i], read[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) read[j] = warp_sum(read[j]);
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (lane == j && column + j < s.dim_v)
        args.out[row * s.value_heads * s.dim_v + head * s.dim_v + column + j] = read[j];
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    store_column<kParts>(state + (column + j) * s.dim_k, column + j < s.dim_v ? s.dim_k : 0, lane,
                         S[j]);
  if constexpr (!kDecode)
    update_ring(args, s, sequence, ring, static_cast<int>(blockIdx.y + gridDim.y * blockIdx.x),
                static_cast<int>(gridDim.x * gridDim.y));
}

template <bool kDecode>
GpuError launch_recurrent(const Launch& launch, const DeltaArgs& args, const float* conv) {
  const GatedDeltaSpec& s = args.spec;
  const dim3 grid(static_cast<unsigned>((s.dim_v + kBlockColumns - 1) / kBlockColumns),
                  static_cast<unsigned>(s.n_value_head),
                  static_cast<unsigned>(args.step.n_sequences));
  const int parts = (s.dim_k + kWarp - 1) / kWarp;
  const auto kernel = parts <= 1   ? recurrent_kernel<1, kDecode>
                      : parts <= 2 ? recurrent_kernel<2, kDecode>
                      : parts <= 4 ? recurrent_kernel<4, kDecode>
                                   : recurrent_kernel<8, kDecode>;
  return launch_kernel(launch, kernel, grid, dim3(kThreads), 0, args, conv);
}

}  // namespace

GpuError delta_convolve(const Launch& launch, const DeltaArgs& args, float* conv) {
  const auto columns = static_cast<unsigned>((args.spec.conv_channels() + 255) / 256);
  const auto rows = static_cast<unsigned>(args.step.rows);
  if (args.spec.conv_width == 4)
    return launch_kernel(launch, convolve_four_kernel,
                         dim3((rows + kConvRows - 1) / kConvRows, columns), dim3(256), 0, args,
                         conv);
  const dim3 grid(rows, columns);
  return launch_kernel(launch, convolve_kernel, grid, dim3(256), 0, args, conv);
}

GpuError delta_recurrent(const Launch& launch, const DeltaArgs& args, const float* conv) {
  return conv == nullptr ? launch_recurrent<true>(launch, args, conv)
                         : launch_recurrent<false>(launch, args, conv);
}

GpuError gated_delta(const Launch& launch, const DeltaArgs& args) {
  if (goes_by_heads(launch, args.spec, args.step)) return delta_heads(launch, args);
  if (args.gates.alpha.data != nullptr)
    return TESSERA_GPU_API(ErrorInvalidValue);  // makes_gates() was not asked
  if (args.step.max_sequence_rows == 1) return delta_recurrent(launch, args, nullptr);
  const bool in_chunks = goes_in_chunks(args.spec, args.step);
  float* conv = nullptr;
  if (!in_chunks || !chunks_convolve(args.spec)) {
    conv = static_cast<float*>(launch.workspace);
    const GpuError error = delta_convolve(launch, args, conv);
    if (error != GpuError{}) return error;
  }
  if (!in_chunks) return delta_recurrent(launch, args, conv);
  return delta_chunked(
      launch, args, conv,
      static_cast<std::byte*>(launch.workspace) + delta_chunks_at(args.spec, args.step.rows));
}

}  // namespace tessera::gpu
