// Behind the FFN of ffn_together.cu's kernel: the projections of the layer behind, whose weights
// come into the ring while the FFN ends.
//
// By kernels of their own they take 14 us for the bytes of 4: rows are rounded by one kernel, and
// the other one's blocks find no room for their weights before the FFN has left. Here the two
// blocks of a cluster have made 32 columns of the residual. They norm and round them, and pass them
// on as in a run; every block takes all of the rows and each n-th pair of tiles.
//
// Arithmetic and the order of sums are those of super_input.cuh and of the narrow kernel
// (project_supers.cu).
#pragma once

#include "device/gpu/kernels/ffn_together.cuh"

namespace tessera::gpu::together {

inline NextArgs next_args(const ProjectArgs& next) {
  NextArgs args{.norm = next.input.weight};
  for (int i = 0, end = 0; i < next.n_outputs; ++i) {
    const Output& output = next.outputs[static_cast<std::size_t>(i)];
    if (is_plain(output.w.type)) continue;
    end += output.w.rows / run::kGroup;
    args.outputs[args.n++] = {.source = source_of(output.w),
                              .data = output.w.data,
                              .out = output.out,
                              .stride = output.stride,
                              .end = end};
  }
  return args;
}

#ifdef TESSERA_GPU_WGMMA

// --- Rows ---

// Of each row's groups four records of two words of levels: the first has the scale, too, the
// second the sums, the others the group's squares.
__device__ __forceinline__ Record* next_of(int row, int group) {
  const Job& job = memory()->job;
  return Passed{job.passed}.records(job.next_rows) + (row * (kCols / kGroup) + group) * 4;
}

// The cluster's columns of a row, by one warp, a column a lane.
__device__ __forceinline__ void pass_columns(float value, int lane, Record* to) {
  const Eight weight = load_eight(memory()->next_weight, lane % 4);
  const Eight columns = group_of_lanes(value, lane);
  float square = squares(columns);
  square += shuffle_xor(square, 1);  // as sum_of_groups() begins
  square += shuffle_xor(square, 2);
  const RoundedGroup group = rounded_group(times(columns, weight));
  const unsigned more = lane == 0   ? __float_as_uint(group.scale)
                        : lane == 1 ? static_cast<unsigned>(group.sums)
                                    : __float_as_uint(square);
  if (lane < 4) pass_record(to + lane, group.low, group.high, more, reading().number);
}

// A super-block of half of the rows, by one warp, to shared memory. It is what this warp will
// multiply, and the one that has the pair's other tile and takes the other rows: the two wait for
// each other alone, so those whose columns come early are done when the last ones come.
inline constexpr int kRowsEach = kDecodeRows / 2;
static_assert(kReaders == 2 * kSupers && kReaders * kRowsEach == kDecodeRows * kSupers);
__device__ __forceinline__ void pair_sync(int super) {
  asm volatile("bar.sync %0, 64;" ::"r"(kFreeBarrier + super) : "memory");
}
__device__ __forceinline__ void take_columns(int warp, int lane) {
  const int super = warp % kSupers, first = warp / kSupers * kRowsEach;
  const int n = min(kRowsEach, memory()->job.rows - first);
  const unsigned number = reading().number;
  const auto* from = next_of(first, super * (kSuperCols / kGroup)) + lane;
  constexpr int kStride = kCols / kGroup * 4;  // from row to row
  // A warp in step: what follows is to run once.
  Record v[kRowsEach];
  bool here = false;
  for (int looks = 0; !__all_sync(0xffffffffu, here); ++looks) {
    if (looks > kPatience) give_up();
    here = true;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
      if (i < n) v[i] = look_at(from + i * kStride);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) here = here && (i >= n || v[i].w == number);
  }
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    if (i >= n) break;
    const auto sums = static_cast<int>(shuffle(v[i].z, (lane & 28) + 1));
    put_group({v[i].x, v[i].y, __uint_as_float(v[i].z), sums}, 1.0f, lane & 3, lane >> 2,
              next_row(first + i) + super * kSuperBytes);
    float square = __uint_as_float(shuffle(v[i].z, (lane & 28) + 2));
#pragma unroll
    for (int mask = 4; mask < kWarp; mask *= 2) square += shuffle_xor(square, mask);
    if (lane == 0) next_squares(first + i)[super] = square;
  }
  __syncwarp();  // barriers are for warps in step
  pair_sync(super);
}

// --- Products ---

// Super-block `index` of a pair of tiles in shared memory, as dot_parts() asks for it.
template <BlockType kType>
class PartsHere {
 public:
  __device__ __forceinline__ PartsHere(std::uint32_t supers, int index, int lane)
      : supers_(supers), index_(index), lane_(lane) {
    if constexpr (kType == BlockType::Q4_K)
      put_words(of_all_, load_shared<uint2>(at(2240, 64, lane / 4 * 8)));
    else
      of_all_[0] = load_shared<std::uint32_t>(at(3328, 32, lane / 4 * 4));
  }
  __device__ __forceinline__ void levels(int tile, std::uint32_t (&q)[4]) const {
    put_words(q, load_shared<uint4>(at(0, 2048, tile * 512 + lane_ * 16)));
  }
  __device__ __forceinline__ void levels(int tile, int odd, std::uint32_t (&w)[3]) const {
    put_words(w, load_shared<uint2>(at(0, 2048, tile * 512 + lane_ * 16 + odd * 8)));
    w[2] = load_shared<std::uint32_t>(at(2048, 1024, tile * 256 + lane_ * 8 + odd * 4));
  }
  __device__ __forceinline__ void scales(int part, std::uint32_t (&s)[2]) const {
    s[0] = load_shared<std::uint32_t>(at(2048, 192, part * 48 + lane_ / 4 * 4));
    s[1] = load_shared<std::uint16_t>(at(2048, 192, part * 48 + 32 + lane_ / 4 * 2));
  }
  __device__ __forceinline__ std::uint32_t scales_of_half(int half, int part) const {
    return load_shared<std::uint32_t>(
        at(3072, 256, lane_ / 4 * 8 + part / 2 * 64 + part % 2 * 4 + half * 128));
  }
  __device__ __forceinline__ std::uint32_t super(int i) const { return of_all_[i]; }

 private:
  // In a plane of `each` bytes a super-block, behind planes of `before`.
  __device__ __forceinline__ std::uint32_t at(int before, int each, int offset) const {
    return supers_ + static_cast<std::uint32_t>(kPairSupers * before + index_ * each + offset);
  }
  std::uint32_t supers_;
  int index_, lane_;
  std::uint32_t of_all_[2];
};

// A warp's sums of 16 rows with all tokens, of super-block `index` of 16: [token][row], the tokens
// so far apart that lanes write to different banks.
template <BlockType kType>
static __device__ __noinline__ void next_sums(std::uint32_t supers, int index, float* to) {
  const int lane = this_lane(), g = lane / 4, t = lane % 4;
  const PartsHere<kType> weights(supers, index, lane);
  const char* rows = next_row(0) + index % kSupers * kSuperBytes;
  EightSums sums;
  dot_parts<kType>(weights, rows, kNextRowBytes, lane, sums);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[(2 * t + i % 2) * kNextStride + g + i / 2 * 8] = sums.total(i);
}

// The sum of a row of a pair of tiles, a row a lane, for one token.
__device__ __forceinline__ float next_total(const float (&of)[kReaders][kNextSums], int token,
                                            int lane) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSupers; ++i)
    sum += of[lane / kTileRows * kSupers + i][token * kNextStride + lane % kTileRows];
  return sum;
}
__device__ __forceinline__ float next_factor(int token) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSupers; ++i) sum += next_squares(token)[i];
  return inverse_root(sum / static_cast<float>(kCols) + memory()->job.next_eps);
}

// By one warp, long before project_next().
__device__ __forceinline__ void describe_next(const TogetherArgs& args, int i) {
  if (has_tile()) memory()->next_weight[i] = args.next.norm[cluster() * kGroup + i];
  const NextUnits units(args.next);
  if (i == 0) memory()->n_pairs = units.n;
  if (i >= units.n) return;
  const NextUnit unit = units.of(i);
  memory()->pairs[i] = {unit.output.out + unit.pair * kGroup, unit.output.stride,
                        unit.output.source.type};
}

// By all warps that read, behind the cluster's sums of down.
static __device__ __noinline__ void project_next() {
  TogetherShared* s = memory();
  const int warp = this_warp(), lane = this_lane();
  readers_sync();  // the cluster's sums have been read, in whose room products and rows stand
  take_columns(warp, lane);
  const int n = s->n_pairs;
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    await_barrier(shared_address(&s->next_here[i]), 0);
    __syncwarp();
    const std::uint32_t supers = address_of(i * kNextPairBytes);
    if (s->pairs[i].type == BlockType::Q4_K)
      next_sums<BlockType::Q4_K>(supers, warp, s->next[i][warp]);
    else
      next_sums<BlockType::Q6_K>(supers, warp, s->next[i][warp]);
  }
  readers_sync();
#pragma unroll 1
  for (int i = warp; i < n * kDecodeRows; i += kReaders) {
    const int token = i % kDecodeRows;
    if (token >= s->job.rows) continue;
    const NextPair& pair = s->pairs[i / kDecodeRows];
    pair.out[token * pair.stride + lane] =
        next_total(s->next[i / kDecodeRows], token, lane) * next_factor(token);
  }
}

#endif

}  // namespace tessera::gpu::together
