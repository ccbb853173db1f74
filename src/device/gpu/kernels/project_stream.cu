// Decode products of matrices that give every multiprocessor many super-blocks: a dense model's.
// Floor: the weights' bytes over the read bandwidth (gate and up of 17408 x 5120 Q4_K: 103 MB, 22
// us at 4.6 TB/s).
//
// Each warp goes down its run (stream_run.cuh) of the block's line (stream_line.cuh). On Hopper two
// blocks, a cluster, share the columns: their sums, and the row's squares, meet in shared memory.
#include <algorithm>

#include "device/gpu/kernels/stream_rows.cuh"
#include "device/gpu/kernels/stream_run.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = kStreamWarps;
constexpr int kLeastSupers = 16;  // of a row: else another kernel's, and a team is one block

// --- Results ---

// Sums of tiles whose results the team's other block has.
template <int kCols, bool kPair, int kParts>
__device__ __forceinline__ void give_sums(const Team<kParts>& team,
                                          const Results<kPair, kParts>& results, int tiles,
                                          const Sums<kCols, kParts>& sums) {
  constexpr int kEach = kTileRows * kCols;
  for (int i = static_cast<int>(threadIdx.x); i < tiles * kEach; i += kWarps * kWarp)
    if (const int tile = i / kEach; !results.has(tile))
      give(team, &sums.given[i], sums.share(tile, i % kEach));
}

// The groups of 32 columns that the block has, rounded: a warp a group and row.
template <int kCols, int kParts>
__device__ __forceinline__ void leave_groups(const StreamArgs& args, const Team<kParts>& team,
                                             int first, int n, const Sums<kCols, kParts>& sums,
                                             const char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int cols = args.of.segments[0].w.rows;
  for (int i = warp;; i += kWarps) {
    const int round = i / kCols * kParts + team.rank, column = i % kCols;
    if (round >= args.group_rounds) break;
    if (column >= n) continue;
    const int tile = 2 * (2 * round + lane / kTileRows);
    const int at = lane % kTileRows * kCols + column;
    const float factor = row_factor(args.of.in, args.of.room, column, shared);
    const float value = activated(args.activation, sums.total(tile, at) * factor,
                                  sums.total(tile + 1, at) * factor);
    const int group = team.index + round * team.count;
    round_lanes(value, lane, group % 8,
                rounded_row(args.out_rounded, cols, first + column) + group / 8 * kSuperBytes);
  }
}

// A warp's part of a plain unit. Called, as what few blocks run.
template <int kCols>
__device__ __noinline__ void plain_part(const SuperArgs& args, int unit, int first, int n,
                                               float* shares) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Share share = warp >> args.part_bits == 0 ? share_of(args, warp) : Share{0, 0};
  const Place at = plain_place_of(args, unit);
  Eight w[kPlainRows];
  load_plain(w, at, share, lane);
  put_plain<kCols>(args, at, share, w, first, n, shares);
}
// Fetches a unit's weights into L2.
__device__ __forceinline__ void prefetch_plain(const SuperArgs& args, const Place& at) {
  const Planes& w = at.segment->w;
  const int each = w.type == BlockType::F32 ? 4 : 2;
  const int rows = min(kPlainRows, w.rows - at.tile * kPlainRows);
  prefetch_block(w.data + std::int64_t{at.tile} * kPlainRows * w.cols * each,
                 rows * w.cols * each);
}

template <int kCols, bool kPair, int kParts>
__device__ __forceinline__ void stream_block(const StreamArgs& stream, char* shared) {
  const SuperArgs& args = stream.of;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kCols, n = min(kCols, args.rows - first);
  team_begins<kParts>();
  const Team<kParts> team(stream.cut);
  const Line<kParts> line = line_of<kPair>(stream, team);
  const int tiles = stream.cut.units.of(team.index) * (kPair ? 2 : 1);
  Run<kCols, kPair, kParts> run(stream, team, line, warp, lane);
  run.start();
  // Plain units go on where the others ended.
  const int blocks = stream.cut.teams * kParts;
  const int past = static_cast<int>(blockIdx.x) - stream.cut.plain_from;
  const int plain = past < 0 ? past + blocks : past;
  const bool has_plain = !kPair && plain < args.plain_units;
  if (has_plain) prefetch_plain(args, plain_place_of(args, plain));
  Rows<kCols, kParts>{args, team, first, n, warp, lane, shared}.wait_and_stage();

  const Results<kPair, kParts> results(stream, team);
  // The warps that have no group begin.
  const int turn = kPair ? (thread + kWarps * kWarp / 2) % (kWarps * kWarp) : thread;
  const Target<kCols> own(stream, team, results, turn, tiles, first, n);
  const float before = own.to != nullptr && own.add ? *own.to : 0.0f;
  const Sums<kCols, kParts> sums(shared + args.room.bytes, tiles, stream.cut.pieces);
  run.multiply(shared, warp, sums);
  if (has_plain) plain_part<kCols>(args, plain, first, n, sums.plain);
  __syncthreads();
  if constexpr (kParts > 1) give_sums<kCols>(team, results, tiles, sums);
  team_sync<kParts>();

  // A thread's column is the same in all its results.
  const float factor = row_factor(args.in, args.room, min(n - 1, turn % kCols), shared);
  if constexpr (kPair) leave_groups<kCols>(stream, team, first, n, sums, shared);
  for (int i = turn;; i += kWarps * kWarp) {
    const Target<kCols> target(stream, team, results, i, tiles, first, n);
    if (target.tile >= tiles) break;
    if (target.to == nullptr) continue;
    float value = __fmul_rn(sums.total(target.tile, target.at), factor);
    if constexpr (kPair)
      value = activated(stream.activation, value, sums.total(target.tile + 1, target.at) * factor);
    if (target.add) value += i == turn ? before : *target.to;
    *target.to = value;
  }
  for (int unit = plain; !kPair && unit < args.plain_units; unit += blocks) {
    if (unit != plain) {
      __syncthreads();
      plain_part<kCols>(args, unit, first, n, sums.plain);
      __syncthreads();
    }
    add_plain<kCols>(args, plain_place_of(args, unit), first, n, sums.plain);
  }
}

template <int kCols, bool kPair>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    stream_kernel(const TESSERA_GRID_CONSTANT StreamArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  stream_block<kCols, kPair, 1>(args, shared);
}
// Two blocks a team.
template <int kCols, bool kPair>
__global__ void TESSERA_CLUSTER(2) __launch_bounds__(kWarps* kWarp, 1)
    stream_team_kernel(const TESSERA_GRID_CONSTANT StreamArgs args) {
#ifdef TESSERA_GPU_WGMMA
  TESSERA_DYNAMIC_SHARED(char, shared);
  stream_block<kCols, kPair, 2>(args, shared);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // stream_parts()
#endif
}

// Blocks that share the columns of rows of so many super-blocks: two, each a half, or one. Of an
// odd number of multiprocessors one then has no block.
int stream_parts(const Launch& launch, int supers) {
  const bool shared = launch.gemm && launch.multiprocessors > 1;
  return shared && supers >= kLeastSupers && supers % 2 == 0 ? 2 : 1;
}
int stream_teams(const Launch& launch, int units, int supers) {
  return std::min(units, std::max(1, launch.multiprocessors / stream_parts(launch, supers)));
}
StreamCut stream_cut(const Launch& launch, const SuperArgs& args, int six_units) {
  const int units = args.units, parts = stream_parts(launch, args.supers);
  const int teams = stream_teams(launch, units, args.supers), supers = args.supers / parts;
  const int each = parts > 1 ? kPiece<2> : kPiece<1>, pieces = (supers + each - 1) / each;
  const auto dealt = [&](int n) { return Dealt{n / teams, n % teams}; };
  const auto inverse = [](int n) { return (1u << 31) / static_cast<unsigned>(n) + 1; };
  return {.parts = parts,
          .teams = teams,
          .supers = supers,
          .units = dealt(units),
          .six = dealt(six_units),
          .pieces = pieces,
          .inverse = inverse(supers),
          .pieces_inverse = inverse(pieces),
          .plain_from = units % teams * parts};
}

template <int kCols>
int sums_bytes(const StreamArgs& args, bool pair) {
  const int tiles = (args.cut.units.each + (args.cut.units.more > 0 ? 1 : 0)) * (pair ? 2 : 1);
  return args.cut.parts > 1 ? Sums<kCols, 2>::bytes(tiles, args.cut.pieces)
                            : Sums<kCols, 1>::bytes(tiles, args.cut.pieces);
}

// Of `columns` rows those columns that one block of a team has, and all squares.
SuperRoom stream_room(const StreamArgs& args, int columns) {
  SuperRoom room = super_room(args.cut.supers, columns);
  room.bytes = room.squares + (args.of.supers * columns * 4 + 15) / 16 * 16;
  return room;
}

template <int kCols, bool kPair>
GpuError launch_stream(const Launch& launch, const StreamArgs& args) {
  const int parts = args.cut.parts, blocks = args.cut.teams * parts;
  const int shared = args.of.room.bytes + sums_bytes<kCols>(args, kPair);
  return launch_kernel(launch,
                       parts > 1 ? stream_team_kernel<kCols, kPair> : stream_kernel<kCols, kPair>,
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
    args.of.room = stream_room(args, kDecodeRows);
    const int bytes = args.of.room.bytes + sums_bytes<kDecodeRows>(args, kPair);
    if (static_cast<std::size_t>(bytes) + 1024 <= shared_limit()) {
      if (args.of.here == 0) {
        const bool plain = has_plain_rows(launch, args.of, 1 << args.of.part_bits);
        const GpuError error =
            plain ? plain_rows(launch, args.of)
                  : round_rows(launch, args.of.in, args.of.rows, rounding.rows);
        if (error != GpuError{}) return error;
        if (plain) args.of.plain_units = 0;
        args.of.here = args.of.supers;
      }
      return launch_stream<kDecodeRows, kPair>(launch, args);
    }
  }
  args.of.room = stream_room(args, 1);
  return launch_stream<1, kPair>(launch, args);
}

}  // namespace

bool has_project_stream(const Launch& launch, int units, int supers) {
  constexpr int kLeastEach = 3 * kWarps;
  return supers >= kLeastSupers &&
         units * supers >= kLeastEach * std::max(1, launch.multiprocessors);
}

GpuError project_stream(const Launch& launch, const SuperArgs& args, int six_units,
                        const Rounding& rounding) {
  StreamArgs stream_args{};
  stream_args.of = args;
  stream_args.cut = stream_cut(launch, args, six_units);
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
  const int columns = 2 * kTileRows * stream_teams(launch, tiles, gate.cols / kSuperCols);
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
  args.cut = stream_cut(launch, args.of, gated.gate.type == BlockType::Q6_K ? args.of.units : 0);
  args.group_rounds = gated.supers * kSuperCols / (2 * kTileRows * args.cut.teams);
  args.out_rounded = gated.rounded;
  return stream<true>(launch, args, rounding);
}

}  // namespace tessera::gpu
