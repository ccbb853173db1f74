// Decode products of matrices that give every multiprocessor many super-blocks: a dense model's.
// Floor: the weights' bytes over the read bandwidth (gate and up of 17408 x 5120 Q4_K: 103 MB, 22
// us at 4.6 TB/s).
//
// A block takes every gridDim.x-th unit of 16 rows. Its units' super-blocks, one unit after
// another, make one line, which the warps cut into runs of equal cost. So no warp waits for another
// before the end, each always has one or two super-blocks of weights on their way, and blocks
// differ by a unit at most. Where a unit is cut, its warps' sums are added in the order of the
// warps: an order that the shapes and the number of blocks fix, the same for one row and for eight.
//
// One row is normed and rounded by each block, while its first weights come; several rows come
// rounded (round_rows).
#include <algorithm>

#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 16;
constexpr int kAhead =
    4;  // super-blocks of a warp that are fetched into L2 before the rows are there
constexpr int kBatch = 2;  // of a row's super-blocks that a warp loads at a time
// Cost of a super-block.
constexpr int kSixCost = 3, kFourCost = 2;

struct StreamArgs {
  SuperArgs of;
  int six_units;          // of Q6_K: they come first
  Activation activation;  // pairs: segments are gate and up, whose units go side by side
};

// --- A block's line of super-blocks ---

// Its tiles: 16 rows of a matrix each; a pair's gate and up follow each other.
template <bool kPair>
__device__ __forceinline__ Place tile_at(const StreamArgs& args, int tile) {
  const int round = kPair ? tile / 2 : tile;
  const int unit = static_cast<int>(blockIdx.x) + round * static_cast<int>(gridDim.x);
  if constexpr (kPair) return {&args.of.segments[tile % 2], unit};
  return place_of(args.of, unit);
}

__host__ __device__ constexpr int units_of_block(int units, int block, int blocks) {
  return units <= block ? 0 : (units - block + blocks - 1) / blocks;
}

struct Line {
  int six, four;  // super-blocks of Q6_K, then of Q4_K
  // Where a warp's run begins; kWarps: where the line ends.
  __device__ __forceinline__ int bound(int warp) const {
    const int at = (kSixCost * six + kFourCost * four) * warp / kWarps;
    return at <= kSixCost * six ? at / kSixCost : six + (at - kSixCost * six) / kFourCost;
  }
};
template <bool kPair>
__device__ __forceinline__ Line line_of(const StreamArgs& args) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int of_unit = args.of.supers * (kPair ? 2 : 1);
  const int units = units_of_block(args.of.units, block, blocks);
  const int six = units_of_block(args.six_units, block, blocks);
  return {six * of_unit, (units - six) * of_unit};
}

// A place in the line.
struct Cursor {
  int tile, super;
  __device__ __forceinline__ void advance(int supers) {
    if (++super < supers) return;
    super = 0;
    ++tile;
  }
};

// --- Rows ---

// Waits for the kernels before and brings their rows to shared memory. Ends with a barrier.
template <int kCols>
__device__ __forceinline__ void wait_and_stage(const SuperArgs& args, int first, int n, int warp,
                                               int lane, char* shared) {
  if constexpr (kCols > 1) {
    chain_wait();
    chain_trigger();
    for (int super = warp; super < args.supers; super += kWarps)
      copy_super(args, first, n, super, lane, shared);
  } else {
    Eight weight[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (warp + i * kWarps < args.supers)
        weight[i] = super_weight(args.in, warp + i * kWarps, lane);
    chain_wait();
    chain_trigger();
    for (int base = warp; base < args.supers; base += kBatch * kWarps) {
      InputSuper read[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int super = base + i * kWarps;
        if (super >= args.supers) break;
        read[i] = load_input(args.in, first, super, lane);
        if (base != warp) weight[i] = super_weight(args.in, super, lane);
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

// What the warps leave of the tiles: the sums of tile and warp in slot tile + warp, which along a
// line no other pair has.
template <int kCols>
struct Sums {
  float* slots;
  int *first, *last;  // a tile's warps
  __device__ Sums(char* shared, int tiles)
      : slots(reinterpret_cast<float*>(shared)),
        first(reinterpret_cast<int*>(slots + (tiles + kWarps) * kTileRows * kCols)),
        last(first + tiles) {}
  static int bytes(int tiles) { return (tiles + kWarps) * kTileRows * kCols * 4 + 2 * tiles * 4; }
  __device__ __forceinline__ float* slot(int tile, int warp) const {
    return slots + (tile + warp) * kTileRows * kCols;
  }
  // Of a row of the tile and a column.
  __device__ __forceinline__ float total(int tile, int at) const {
    float sum = 0;
    for (int warp = first[tile]; warp <= last[tile]; ++warp) sum += slot(tile, warp)[at];
    return sum;
  }
};

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

// Where this thread's i-th result of the block goes; null: nowhere.
template <int kCols, bool kPair>
struct Target {
  float* to = nullptr;
  bool add = false;
  int tile = 0, at = 0;
  __device__ __forceinline__ Target(const StreamArgs& args, int i, int tiles, int first, int n) {
    tile = i / (kTileRows * kCols) * (kPair ? 2 : 1);
    at = i % (kTileRows * kCols);
    if (tile >= tiles) return;
    const Place place = tile_at<kPair>(args, tile);
    const Segment& s = *place.segment;
    const int row = place.tile * kTileRows + at / kCols, column = at % kCols;
    if (row >= s.w.rows || column >= n) return;
    to = s.out + (first + column) * s.stride + row;
    add = s.add;
  }
};

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
  for (int i = thread; i < tiles * kTileRows * kCols; i += kWarps * kWarp) {
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
GpuError stream(const Launch& launch, StreamArgs args, std::byte* rounded) {
  if (args.of.rows > 1) {
    args.of.room = super_room(args.of.supers, kDecodeRows);
    const int bytes =
        args.of.room.bytes + Sums<kDecodeRows>::bytes(block_tiles(launch, args.of, kPair));
    if (static_cast<std::size_t>(bytes) + 1024 <= shared_limit()) {
      args.of.rounded = rounded;
      const GpuError error = round_rows(launch, args.of.in, args.of.rows, rounded);
      return error != GpuError{} ? error : launch_stream<kDecodeRows, kPair>(launch, args);
    }
  }
  args.of.room = super_room(args.of.supers, 1);
  return launch_stream<1, kPair>(launch, args);
}

}  // namespace

bool has_project_stream(const Launch& launch, const SuperArgs& args) {
  constexpr int kLeastSupers = 16, kLeastEach = 3 * kWarps;
  return args.supers >= kLeastSupers &&
         args.units * args.supers >= kLeastEach * std::max(1, launch.multiprocessors);
}

GpuError project_stream(const Launch& launch, const SuperArgs& args, int six_units,
                        std::byte* rounded) {
  StreamArgs stream_args{};
  stream_args.of = args;
  stream_args.six_units = six_units;
  while (2 << stream_args.of.part_bits <= std::min(args.supers, kWarps)) ++stream_args.of.part_bits;
  return stream<false>(launch, stream_args, rounded);
}

bool has_gated_stream(const Input& input, const Matrix& gate, const Matrix& up) {
  return has_super_input(input) && has_supers(gate.type) && gate.type == up.type;
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
  return stream<true>(launch, args, rounding.rows);
}

}  // namespace tessera::gpu
