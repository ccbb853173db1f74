// Decode products of matrices that give every multiprocessor many super-blocks: a dense model's.
// Floor: the weights' bytes over the read bandwidth (gate and up of 17408 x 5120 Q4_K: 103 MB, 22
// us at 4.6 TB/s).
//
// Each warp goes down its run of the block's line (stream_line.cuh) with one or two super-blocks of
// weights on their way.
//
// One row is normed and rounded by each block, while its first weights come; several rows come
// rounded (round_rows), and what gate and up have rounded comes so in any case.
#include <algorithm>

#include "device/gpu/kernels/stream_line.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = kStreamWarps;
constexpr int kAhead = 1;  // super-blocks that a warp fetches into L2 before the rows are there
constexpr int kBatch = 2;  // of a row's super-blocks that a warp loads at a time

// --- Rows ---

// Those of a row's super-blocks that are there rounded.
template <int kCols>
__device__ __forceinline__ void copy_supers(const SuperArgs& args, int first, int n, int warp,
                                            int lane, char* shared) {
  if constexpr (kCols > 1) {
    for (int super = warp; super < args.here; super += kWarps)
      copy_super(args, first, n, super, lane, shared);
  } else {
    const auto* from =
        reinterpret_cast<const uint4*>(rounded_row(args.rounded, args.in.cols, first));
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < args.here * kSuperBytes / 16;
         i += kWarps * kWarp)
      reinterpret_cast<uint4*>(shared)[i] = from[i];
  }
}

// Waits for the kernels before and brings their rows to shared memory. Ends with a barrier.
template <int kCols>
__device__ __forceinline__ void wait_and_stage(const SuperArgs& args, int first, int n, int warp,
                                               int lane, char* shared) {
  Eight weight[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i)
    if (kCols == 1 && args.here + warp + i * kWarps < args.supers)
      weight[i] = super_weight(args.in, args.here + warp + i * kWarps, lane);
  chain_wait();
  chain_trigger();
  copy_supers<kCols>(args, first, n, warp, lane, shared);
  // Of several rows, few that are not there.
  if constexpr (kCols > 1) {
    for (int i = args.here * n + warp; i < args.supers * n; i += kWarps)
      stage_super(args.in, args.room, i % n, i / n, load_input(args.in, first + i % n, i / n, lane),
                  super_weight(args.in, i / n, lane), lane, shared);
  } else {
    for (int base = args.here + warp; base < args.supers; base += kBatch * kWarps) {
      InputSuper read[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int super = base + i * kWarps;
        if (super >= args.supers) break;
        read[i] = load_input(args.in, first, super, lane);
        if (base != args.here + warp) weight[i] = super_weight(args.in, super, lane);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int super = base + i * kWarps;
        if (super >= args.supers) break;
        stage_super(args.in, args.room, 0, super, read[i], weight[i], lane, shared);
      }
    }
  }
  __syncthreads();
}

// --- Sums ---

template <BlockType kType>
__device__ __forceinline__ void dot_stream(const RawSuper& raw, const char* row, const SuperRoom&,
                                           int lane, RowSums& sums) {
  dot_super<kType>(raw, row, lane, sums);
}
template <BlockType kType>
__device__ __forceinline__ void dot_stream(const RawSuper& raw, const char* rows,
                                           const SuperRoom& room, int lane, EightSums& sums) {
  dot_super<kType>(raw, rows, room.row_bytes, lane, sums);
}

// A warp's run through the line. Super-blocks are of Q6_K up to `middle`, then of Q4_K: each part
// has code of its own.
template <int kCols, bool kPair>
struct Run {
  int begin, middle, end;
  Cursor ahead;  // behind what `raw` holds: the next two super-blocks
  RawSuper raw[2];

  __device__ __forceinline__ Run(const Line& line, int warp)
      : begin(line.bound(warp)), end(line.bound(warp + 1)) {
    middle = max(begin, min(end, line.six));
  }

  template <BlockType kType>
  __device__ __forceinline__ void fetch(const StreamArgs& args, int i, int lane) {
    const Place at = tile_at<kPair>(args, ahead.tile);
    load_super<kType>(raw[i], at.segment->w, at.tile, ahead.super, lane);
    ahead.advance(args.of.supers);
  }
  template <BlockType kType>
  __device__ __forceinline__ void fetch_first(const StreamArgs& args, int from, int to, int lane) {
    ahead = {from / args.of.supers, from % args.of.supers};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (from + i < to) fetch<kType>(args, i, lane);
  }

  __device__ __forceinline__ void start(const StreamArgs& args, int lane) {
    if (begin < middle)
      fetch_first<BlockType::Q6_K>(args, begin, middle, lane);
    else
      fetch_first<BlockType::Q4_K>(args, begin, end, lane);
    Cursor later = ahead;
    for (int at = begin + 2; at < min(end, begin + 2 + kAhead); ++at) {
      const Place place = tile_at<kPair>(args, later.tile);
      prefetch_super(place.segment->w, place.tile, later.super, lane);
      later.advance(args.of.supers);
    }
  }

  template <BlockType kType>
  __device__ __forceinline__ void multiply(const StreamArgs& args, int from, int to,
                                           const char* rows, int warp, int lane,
                                           const Sums<kCols>& out) {
    const int supers = args.of.supers;
    Cursor at{from / supers, from % supers};
    typename SumsOf<kCols>::Type sums;
    for (int base = from; base < to; base += 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int here = base + i;
        if (here >= to) break;
        dot_stream<kType>(raw[i], rows + at.super * kSuperBytes, args.of.room, lane, sums);
        if (here + 2 < to) fetch<kType>(args, i, lane);
        const bool ends = at.super + 1 == supers;
        if (ends || here + 1 == to) {
          put_sums(sums, lane, out.slot(at.tile, warp));
          if (lane == 0 && here - at.super >= from) out.first[at.tile] = warp;
          if (lane == 0 && ends) out.last[at.tile] = warp;
          sums = {};
        }
        at.advance(supers);
      }
  }

  __device__ __forceinline__ void multiply(const StreamArgs& args, const char* rows, int warp,
                                           int lane, const Sums<kCols>& out) {
    // An empty run counts as zeros.
    if (begin == end)
      put_sums(typename SumsOf<kCols>::Type{}, lane, out.slot(begin / args.of.supers, warp));
    if (begin < middle) {
      multiply<BlockType::Q6_K>(args, begin, middle, rows, warp, lane, out);
      if (middle < end) fetch_first<BlockType::Q4_K>(args, middle, end, lane);
    }
    if (middle < end) multiply<BlockType::Q4_K>(args, middle, end, rows, warp, lane, out);
  }
};

// --- Results ---

// The groups of 32 columns that the block has made, rounded: a warp a group and row.
template <int kCols>
__device__ __forceinline__ void leave_groups(const StreamArgs& args, int first, int n,
                                             const Sums<kCols>& sums, const char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int cols = args.of.segments[0].w.rows;
  for (int i = warp; i < args.group_rounds * n; i += kWarps) {
    const int round = i / n, column = i % n;
    const int tile = 2 * (2 * round + lane / kTileRows);
    const int at = lane % kTileRows * kCols + column;
    const float factor = row_factor(args.of.in, args.of.room, column, shared);
    const float value = activated(args.activation, sums.total(tile, at) * factor,
                                  sums.total(tile + 1, at) * factor);
    const int group = static_cast<int>(blockIdx.x) + round * static_cast<int>(gridDim.x);
    round_lanes(value, lane, group % 8,
                rounded_row(args.out_rounded, cols, first + column) + group / 8 * kSuperBytes);
  }
}

template <int kCols, bool kPair>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    stream_kernel(const TESSERA_GRID_CONSTANT StreamArgs stream) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  const SuperArgs& args = stream.of;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kCols, n = min(kCols, args.rows - first);
  const Line line = line_of<kPair>(stream);
  const int tiles = (line.six + line.four) / args.supers;
  Run<kCols, kPair> run(line, warp);
  run.start(stream, lane);
  wait_and_stage<kCols>(args, first, n, warp, lane, shared);

  const int thread = static_cast<int>(threadIdx.x);
  const Target<kCols, kPair> own(stream, thread, tiles, first, n);
  const float before = own.to != nullptr && own.add ? *own.to : 0.0f;
  const Sums<kCols> sums(shared + args.room.bytes, tiles);
  run.multiply(stream, shared, warp, lane, sums);
  __syncthreads();

  // A thread's column is the same in all its results.
  const float factor = row_factor(args.in, args.room, min(n - 1, thread % kCols), shared);
  if constexpr (kPair) leave_groups<kCols>(stream, first, n, sums, shared);
  const int left = kPair ? 2 * stream.group_rounds * kTileRows * kCols : 0;
  for (int i = left + thread; i < tiles * kTileRows * kCols; i += kWarps * kWarp) {
    const Target<kCols, kPair> target(stream, i, tiles, first, n);
    if (target.to == nullptr) continue;
    float value = sums.total(target.tile, target.at) * factor;
    if constexpr (kPair)
      value = activated(stream.activation, value, sums.total(target.tile + 1, target.at) * factor);
    if (target.add) value += i == thread ? before : *target.to;
    *target.to = value;
  }
  if constexpr (!kPair) {
    // Plain units go on where the others ended.
    const int blocks = static_cast<int>(gridDim.x);
    const int from = (static_cast<int>(blockIdx.x) + blocks - args.units % blocks) % blocks;
    plain_units<kCols, kWarps>(args, from, blocks,
                               warp >> args.part_bits == 0 ? share_of(args, warp) : Share{0, 0},
                               first, n, sums.slots);
  }
}

int stream_blocks(const Launch& launch, const SuperArgs& args) {
  return std::min(args.units, std::max(1, launch.multiprocessors));
}

int block_tiles(const Launch& launch, const SuperArgs& args, bool pair) {
  return units_of_block(args.units, 0, stream_blocks(launch, args)) * (pair ? 2 : 1);
}

template <int kCols, bool kPair>
GpuError launch_stream(const Launch& launch, const StreamArgs& args) {
  const int blocks = stream_blocks(launch, args.of);
  const int shared = args.of.room.bytes + Sums<kCols>::bytes(block_tiles(launch, args.of, kPair));
  return launch_kernel(launch, stream_kernel<kCols, kPair>,
                       dim3(static_cast<unsigned>(blocks),
                            static_cast<unsigned>((args.of.rows + kCols - 1) / kCols)),
                       dim3(kWarps * kWarp), static_cast<std::size_t>(shared), args);
}

// Several rows at once where they fit a block, else one after another.
template <bool kPair>
GpuError stream(const Launch& launch, StreamArgs args, const Rounding& rounding) {
  args.of.rounded = rounding.rows;
  args.of.here = rounding.here;
  if (args.of.rows > 1) {
    args.of.room = super_room(args.of.supers, kDecodeRows);
    const int bytes =
        args.of.room.bytes + Sums<kDecodeRows>::bytes(block_tiles(launch, args.of, kPair));
    if (static_cast<std::size_t>(bytes) + 1024 <= shared_limit()) {
      if (args.of.here == 0) {
        const GpuError error = round_rows(launch, args.of.in, args.of.rows, rounding.rows);
        if (error != GpuError{}) return error;
        args.of.here = args.of.supers;
      }
      return launch_stream<kDecodeRows, kPair>(launch, args);
    }
  }
  args.of.room = super_room(args.of.supers, 1);
  return launch_stream<1, kPair>(launch, args);
}

}  // namespace

bool has_project_stream(const Launch& launch, int units, int supers) {
  constexpr int kLeastSupers = 16, kLeastEach = 3 * kWarps;
  return supers >= kLeastSupers &&
         units * supers >= kLeastEach * std::max(1, launch.multiprocessors);
}

GpuError project_stream(const Launch& launch, const SuperArgs& args, int six_units,
                        const Rounding& rounding) {
  StreamArgs stream_args{};
  stream_args.of = args;
  stream_args.six_units = six_units;
  while (2 << stream_args.of.part_bits <= std::min(args.supers, kWarps)) ++stream_args.of.part_bits;
  return stream<false>(launch, stream_args, rounding);
}

bool has_gated_stream(const Input& input, const Matrix& gate, const Matrix& up) {
  return has_super_input(input) && has_supers(gate.type) && gate.type == up.type;
}

int gated_supers(const Launch& launch, const Matrix& gate, const Matrix& down) {
  const int units = static_cast<int>(row_tiles(down.rows)), supers = down.cols / kSuperCols;
  if (!has_supers(down.type) || down.cols % kSuperCols != 0 || down.cols != gate.rows ||
      units >= least_wide_units(launch) || !has_project_stream(launch, units, supers))
    return 0;
  const int tiles = static_cast<int>(row_tiles(gate.rows));
  const int columns = 2 * kTileRows * std::min(tiles, std::max(1, launch.multiprocessors));
  int rounds = gate.rows / columns;
  while (rounds * columns % kSuperCols != 0) --rounds;
  return rounds * columns / kSuperCols;
}

GpuError gated_stream(const Launch& launch, const GatedArgs& gated, const Rounding& rounding) {
  StreamArgs args{};
  args.of.in = gated.input;
  args.of.rows = gated.rows;
  args.of.supers = gated.input.cols / kSuperCols;
  args.of.units = static_cast<int>(row_tiles(gated.gate.rows));
  for (int i = 0; i < 2; ++i)
    args.of.segments[i] = {planes_of(i == 0 ? gated.gate : gated.up), gated.out, gated.stride,
                           false, args.of.units};
  args.activation = gated.activation;
  args.six_units = gated.gate.type == BlockType::Q6_K ? args.of.units : 0;
  args.group_rounds = gated.supers * kSuperCols / (2 * kTileRows * stream_blocks(launch, args.of));
  args.out_rounded = gated.rounded;
  return stream<true>(launch, args, rounding);
}

}  // namespace tessera::gpu
