// Decode projections of Q4_K and Q6_K matrices, plain ones beside them, by whole super-blocks.
// Floor: the weights' bytes over the read bandwidth (a 2048 x 12288 Q4_K product is 14.5 MB: 3.2 us
// at 4.6 TB/s).
//
// narrow: a block's warps share the columns. Each rounds its own super-blocks of the row (several
// rows come rounded, by round_rows) and meets with them the weights of one unit after another: 16
// rows of a quantised matrix, or a few of a plain one. The weights of the first unit are in
// registers, the others' on their way to L2, before the kernel before is done. So many tiles that
// each warp takes whole ones: project_wide.cu; many super-blocks: project_stream.cu; plain matrices
// of several rows where blocks form clusters: plain_rows.cu.
#include <algorithm>

#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {
namespace {

// Units whose sums wait for one barrier.
constexpr int round_units(int n_cols) {
  return n_cols == 1 ? 4 : 1;
}
// Blocks of a multiprocessor's share of a kernel; and the threads of a block that would have all
// its registers: more than there are, so that some are left for the next kernel's blocks, which
// fetch their weights meanwhile.
constexpr int blocks_each(int n_cols, int warps) {
  return warps == 8 ? (n_cols == 1 ? 3 : 2) : 1;
}
constexpr int bound_threads(int n_cols) {
  return n_cols > 1 ? 512 : 768;
}

// Plain matrices alone; blocks past their units leave a row each rounded.
constexpr int kPlainWarps = 8;
__device__ __forceinline__ void leave_row(const SuperArgs& args, int row, int warp, int lane) {
  if (warp >= args.supers || row >= args.rows) return;
  Eight weight = super_weight(args.in, warp, lane);
  chain_wait();
  chain_trigger();
  char* to = rounded_row(args.rounded, args.in.cols, row);
  for (int super = warp; super < args.supers; super += kPlainWarps) {
    if (super != warp) weight = super_weight(args.in, super, lane);
    put_input(args.in, load_input(args.in, row, super, lane), weight, lane,
              to + super * kSuperBytes, rounded_squares(to, args.in.cols) + super);
  }
}
template <int kCols>
__global__ void __launch_bounds__(kPlainWarps* kWarp, kCols == 1 ? 4 : 2)
    plain_kernel(const TESSERA_GRID_CONSTANT SuperArgs args) {
  __shared__ float shares[kPlainWarps * (kPlainRows + 1) * kCols];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kCols, n = min(kCols, args.rows - first);
  if (static_cast<int>(blockIdx.x) >= args.plain_units)
    return leave_row(args, first + static_cast<int>(blockIdx.x) - args.plain_units, warp, lane);
  const Place at = plain_place_of(args, static_cast<int>(blockIdx.x));
  const Share share = warp >> args.part_bits == 0 ? share_of(args, warp) : Share{0, 0};
  Eight w[kPlainRows];
  load_plain(w, at, share, lane);
  chain_wait();
  chain_trigger();
  plain_unit<kCols>(args, at, share, w, first, n, shares);
}

// --- Narrow ---

template <bool kSix>
__device__ __forceinline__ void load_first(const SuperArgs& args, int unit, int super, int lane,
                                           RawSuper& raw) {
  if (unit >= args.units) return;
  const Place at = place_of(args, unit);
  load_either<kSix>(raw, at.segment->w, at.tile, super, lane);
}

// The warp's share of a unit; leaves the first super-block of its next one in `raw`.
template <int kCols, bool kSix>
__device__ __forceinline__ void unit_share(const SuperArgs& args, int unit, int next, Share share,
                                           RawSuper& raw, const char* shared, int lane,
                                           float* shares) {
  const Place at = place_of(args, unit);
  const Planes& w = at.segment->w;
  typename SumsOf<kCols>::Type sums;
  for (int super = share.begin; super < share.end; ++super) {
    dot_either<kSix>(w.type, raw, shared + super * kSuperBytes, args.room.row_bytes, lane, sums);
    if (super + 1 < share.end) load_either<kSix>(raw, w, at.tile, super + 1, lane);
  }
  load_first<kSix>(args, next, share.begin, lane, raw);
  put_sums(sums, lane, shares);
}

// Adds up the parts of `n_units` units and stores them. shares: [unit][warp][16][kCols].
template <int kCols, int kWarps>
__device__ __forceinline__ void store_units(const SuperArgs& args, int first_unit, int step,
                                            int n_units, int first, int n, const char* shared,
                                            const float* shares) {
  const int slots = kWarps >> args.part_bits;
  for (int i = static_cast<int>(threadIdx.x); i < n_units * slots * kTileRows * kCols;
       i += kWarps * kWarp) {
    const int column = i % kCols, r = i / kCols % kTileRows, which = i / (kCols * kTileRows);
    const int slot = which & (slots - 1), round = (which << args.part_bits) / kWarps;
    const int unit = first_unit + round * step + slot;
    if (unit >= args.units || column >= n) continue;
    const Place at = place_of(args, unit);
    const int row = at.tile * kTileRows + r;
    if (row >= at.segment->w.rows) continue;
    const float* from =
        shares + ((round * kWarps + (slot << args.part_bits)) * kTileRows + r) * kCols + column;
    float sum = 0;
    for (int part = 0; part < 1 << args.part_bits; ++part) sum += from[part * kTileRows * kCols];
    sum *= row_factor(args.in, args.room, column, shared);
    float* to = at.segment->out + (first + column) * at.segment->stride + row;
    *to = at.segment->add ? *to + sum : sum;
  }
}

// Waits for the kernels before and brings their rows; where a unit's warps are the whole block each
// brings its own columns, without a barrier.
template <int kCols, int kWarps>
__device__ __forceinline__ void wait_and_stage(const SuperArgs& args, Share share, int first, int n,
                                               char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool alone = 1 << args.part_bits == kWarps;
  const int from = alone ? share.begin : warp, to = alone ? share.end : args.supers;
  const int stride = alone ? 1 : kWarps;
  Eight weight{};
  if (kCols == 1 && from < to) weight = super_weight(args.in, from, lane);
  chain_wait();
  chain_trigger();
  for (int super = from; super < to; super += stride) {
    if constexpr (kCols == 1) {
      if (super != from) weight = super_weight(args.in, super, lane);
      stage_super(args.in, args.room, 0, super, load_input(args.in, first, super, lane), weight,
                  lane, shared);
    } else {
      copy_super(args, first, n, super, super, lane, shared);
    }
  }
  if (alone)
    __syncwarp();
  else
    __syncthreads();
}

template <int kCols, int kWarps, bool kSix>
__global__ void __launch_bounds__(bound_threads(kCols), 1)
    narrow_kernel(const TESSERA_GRID_CONSTANT SuperArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  float* shares = reinterpret_cast<float*>(shared + args.room.bytes);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slots = kWarps >> args.part_bits, slot = warp >> args.part_bits;
  const Share share = share_of(args, warp - (slot << args.part_bits));
  const int first = static_cast<int>(blockIdx.y) * kCols, n = min(kCols, args.rows - first);
  const int block = static_cast<int>(blockIdx.x) - args.plain_blocks;
  if constexpr (kCols > 1)
    if (block < 0) {
      chain_wait();
      chain_trigger();
      return plain_units<kCols>(args, static_cast<int>(blockIdx.x), args.plain_blocks,
                                        slot == 0 ? share : Share{0, 0}, first, n, shares);
    }
  const int step = (static_cast<int>(gridDim.x) - args.plain_blocks) * slots;
  const int begin = block * slots;

  RawSuper raw;
  load_first<kSix>(args, begin + slot, share.begin, lane, raw);
  for (int unit = begin + slot; unit < args.units; unit += step) {
    const Place at = place_of(args, unit);
    for (int super = share.begin + (unit < step ? 1 : 0); super < share.end; ++super)
      prefetch_super(at.segment->w, at.tile, super, lane);
  }
  wait_and_stage<kCols, kWarps>(args, share, first, n, shared);

  constexpr int kRound = round_units(kCols);
  for (int base = begin; base < args.units; base += kRound * step) {
    int count = 0;
    for (int unit = base; count < kRound && unit < args.units; unit += step, ++count)
      if (unit + slot < args.units)
        unit_share<kCols, kSix>(args, unit + slot, unit + step + slot, share, raw, shared, lane,
                                shares + (count * kWarps + warp) * kTileRows * kCols);
    __syncthreads();
    store_units<kCols, kWarps>(args, base, step, count, first, n, shared, shares);
    if (base + kRound * step < args.units) __syncthreads();
  }
  if constexpr (kCols == 1)
    plain_units<kCols>(args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                               slot == 0 ? share : Share{0, 0}, first, n, shares);
}

// --- Launch ---

template <int kCols, int kWarps>
GpuError launch_narrow(const Launch& launch, SuperArgs& args, bool six) {
  if (kCols > 1) args.plain_blocks = std::min(args.plain_units, 32);
  const int slots = kWarps >> args.part_bits, needed = (args.units + slots - 1) / slots;
  const int most = std::max(
      1, std::max(1, launch.multiprocessors) * blocks_each(kCols, kWarps) - args.plain_blocks);
  const int blocks = even_blocks(needed, most);
  const int shares = round_units(kCols) * kWarps * kTileRows * kCols * 4;
  return launch_kernel(
      launch, six ? narrow_kernel<kCols, kWarps, true> : narrow_kernel<kCols, kWarps, false>,
      dim3(static_cast<unsigned>(args.plain_blocks + blocks),
           static_cast<unsigned>((args.rows + kCols - 1) / kCols)),
      dim3(kWarps * kWarp), static_cast<std::size_t>(args.room.bytes + shares), args);
}

template <int kCols>
GpuError launch_supers(const Launch& launch, SuperArgs& args, bool six, bool wide) {
  // Few units: more warps a unit.
  const bool many = args.units > 0 && args.supers >= 16 && args.units <= 2 * launch.multiprocessors;
  while (args.part_bits < (many ? 4 : 3) && 2 << args.part_bits <= args.supers) ++args.part_bits;
  if (args.units == 0)
    return launch_kernel(
        launch, plain_kernel<kCols>,
        dim3(static_cast<unsigned>(args.plain_units +
                                   (args.rounded == nullptr ? 0 : std::min(kCols, args.rows))),
             static_cast<unsigned>((args.rows + kCols - 1) / kCols)),
        dim3(kPlainWarps * kWarp), 0, args);
  if (wide) return project_wide(launch, args, kCols);
  return many ? launch_narrow<kCols, 16>(launch, args, six)
              : launch_narrow<kCols, 8>(launch, args, six);
}

}  // namespace

bool has_project_supers(const ProjectArgs& project) {
  if (!has_super_input(project.input)) return false;
  for (int i = 0; i < project.n_outputs; ++i) {
    const BlockType type = project.outputs[static_cast<std::size_t>(i)].w.type;
    if (!is_plain(type) && !has_supers(type)) return false;
  }
  return true;
}

GpuError project_supers(const Launch& launch, const ProjectArgs& project,
                        const Rounding& rounding) {
  SuperArgs args{};
  args.in = project.input;
  args.rows = project.rows;
  args.supers = project.input.cols / kSuperCols;
  int n = 0, six_units = 0;
  const auto take = [&](int& units, int unit_rows, auto wanted) {
    for (int i = 0; i < project.n_outputs; ++i) {
      const Output& output = project.outputs[static_cast<std::size_t>(i)];
      if (!wanted(output.w.type)) continue;
      units += (output.w.rows + unit_rows - 1) / unit_rows;
      args.segments[n++] = {planes_of(output.w), output.out, output.stride, output.add, units};
    }
  };
  take(args.units, kTileRows, [](BlockType type) { return type == BlockType::Q6_K; });
  six_units = args.units;
  take(args.units, kTileRows, [](BlockType type) { return type == BlockType::Q4_K; });
  args.first_plain = n;
  take(args.plain_units, kPlainRows, [](BlockType type) { return is_plain(type); });
  const int quantised = args.first_plain;
  for (int i = 0; i + 1 < kMaxOutputs; ++i)
    args.ends[i] = i + 1 < quantised ? args.segments[i].end_unit : args.units + 1;
  const bool wide = n == 1 && args.units >= least_wide_units(launch), six = six_units > 0;
  if (!wide && has_project_stream(launch, args.units, args.supers))
    return project_stream(launch, args, six_units, rounding);
  if (rounding.here > 0) return TESSERA_GPU_API(ErrorInvalidValue);  // gated_supers() was not asked
  constexpr std::size_t kOther = 16 * kTileRows * kDecodeRows * 4;   // the most that shares take
  const bool plain = args.units == 0;
  if (!plain || rounding.leave) args.rounded = rounding.rows;
  if (args.rows > 1) {
    args.room = super_room(args.supers, kDecodeRows);
    if (static_cast<std::size_t>(args.room.bytes) + kOther + 1024 <= shared_limit()) {
      if (!wide && has_plain_rows(launch, args, kPlainWarps)) {
        const GpuError error = plain_rows(launch, args);
        if (plain || error != GpuError{}) return error;
        args.plain_units = 0;
      } else if (!plain && !wide) {
        const GpuError error = round_rows(launch, args.in, args.rows, args.rounded);
        if (error != GpuError{}) return error;
      }
      return launch_supers<kDecodeRows>(launch, args, six, wide);
    }
  }
  args.room = super_room(args.supers, 1);
  return launch_supers<1>(launch, args, six, wide);
}

}  // namespace tessera::gpu
