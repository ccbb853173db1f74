// Tensor-core products for many rows: a warp computes 16 weight rows times up to 128 tokens, the
// weights decoded to f16 in the registers in which the matrix instruction takes them, the tokens
// through a ring of shared-memory tiles filled by asynchronous copies.
//
// A block has 16 warps. Where its tiles have 96 tokens at most it has 8, and two such blocks stand
// on a multiprocessor, of 32 tokens three: some decode, load or store while others multiply or wait
// at their barrier. Weights come by weight_feed.cuh.
//
// Tokens are rows of halves (half_rows.cuh). A column of the result depends on nothing but that
// token, and its sum runs over the columns in rising order.
//
// Floor: 2 * rows * cols * tokens operations at the tensor rate (790 TFLOP/s measured for f16 on an
// H200); with few tokens a matrix's bytes at the memory's rate. A block reads 0.57 bytes of weights
// and 128 / 256 of its token bytes a product of 256 x 128.
#pragma once

#include "device/gpu/kernels/half_rows.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/tile_product.cuh"
#include "device/gpu/kernels/warpgroup.cuh"
#include "device/gpu/kernels/weight_feed.cuh"

namespace tessera::gpu {

// Shared memory of a block: tokens, and weights where the device has as much as Hopper, whose code
// takes it.
template <BlockType kType, int kMost>
std::size_t tile_shared(int stages) {
  const bool ring = shared_limit() >= std::size_t{227} * 1024;  // whatever Launch says it is
  const int weights = ring ? kFeedBytes<kType, kMost> : 0;
  return static_cast<std::size_t>(stages * kStageBytes<kMost> + weights + 1024);
}

// The blocks of a product: `each` row tiles a block, by tiles of tokens.
inline dim3 tile_grid(const Planes& w, int each, int tiles) {
  return dim3(static_cast<unsigned>((w.row_tiles + each - 1) / each), static_cast<unsigned>(tiles));
}

// Stores a result or adds it to what is there: without reading it, which a thread that has many
// would wait for one by one. Nobody else adds to it.
__device__ __forceinline__ void put_sum(float* at, float value, bool add) {
  if (!add)
    *at = value;
  else
#ifdef TESSERA_GPU_PTX
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(at), "f"(value) : "memory");
#else
    *at += value;
#endif
}

// Four signed or unsigned bytes as halves: (0, 2) and (1, 3), less `zero`.
template <bool kSigned>
__device__ __forceinline__ void bytes_to_halves(std::uint32_t bytes, __half2 zero, __half2& even,
                                                __half2& odd) {
  const std::uint32_t raised = kSigned ? bytes ^ 0x80808080u : bytes;
  even = __hsub2(as_half2(permute(raised, 0x64646464u, 0x4240u)), zero);
  odd = __hsub2(as_half2(permute(raised, 0x64646464u, 0x4341u)), zero);
}

// The low nibbles (group 0) or the high ones of four bytes as halves: (0, 2) and (1, 3).
__device__ __forceinline__ void nibbles_to_halves(std::uint32_t word, int group, __half2& even,
                                                  __half2& odd) {
  const std::uint32_t mask = group == 0 ? 0x000f000fu : 0x00f000f0u;
  const __half2 x = as_half2(select_bits(word, mask, 0x64006400u)),
                y = as_half2(select_bits(word >> 8, mask, 0x64006400u));
  if (group == 0) {
    even = __hsub2(x, __float2half2_rn(1024));
    odd = __hsub2(y, __float2half2_rn(1024));
  } else {  // sixteenfold
    even = __hfma2(x, __float2half2_rn(1.0f / 16), __float2half2_rn(-1024.0f / 16));
    odd = __hfma2(y, __float2half2_rn(1.0f / 16), __float2half2_rn(-1024.0f / 16));
  }
}

// The factors of one group as halves: [step of 16 columns][low or high row].
template <BlockType kType>
__device__ __forceinline__ void half_factors(const Tile<kType>& tile, int group,
                                             __half2 (&scale)[2][2], __half2 (&minimum)[2][2]) {
  using T = Tile<kType>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // A product of a half and a small whole number is rounded once, as by way of f32.
    if constexpr (kType == BlockType::Q4_K || kType == BlockType::Q5_K) {
      const __half2 both =
          __hmul2(as_half2(tile.d[half]), tile.six_bits().halves(2 * group + half));
      scale[0][half] = scale[1][half] = __lows2half2(both, both);
      minimum[0][half] = minimum[1][half] = __hneg2(__highs2half2(both, both));
    } else if constexpr (kType == BlockType::Q6_K || kType == BlockType::Q3_K) {
      const __half2 supers = as_half2(tile.d[0]);
      const __half2 d = half == 0 ? __lows2half2(supers, supers) : __highs2half2(supers, supers);
      const __half2 both =
          __hmul2(d, __hsub2(as_half2(permute(tile.s[group] ^ 0x80808080u, 0x64646464u,
                                              half == 0 ? 0x4140u : 0x4342u)),
                             __float2half2_rn(1024 + 128)));
      scale[0][half] = __lows2half2(both, both);
      scale[1][half] = __highs2half2(both, both);
    } else {
      float scales[T::kParts][2], minimums[T::kParts][2];
      tile.factors(group, scales, minimums);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int part = T::kParts == 1 ? 0 : step;
        scale[step][half] = __float2half2_rn(scales[part][half]);
        minimum[step][half] = __float2half2_rn(-minimums[part][half]);
      }
    }
  }
}

// The A operands of the two 16-column steps of one group of 32.
template <BlockType kType>
__device__ __forceinline__ void decode_group(const Tile<kType>& tile, int group,
                                             std::uint32_t (&a)[2][4]) {
  using T = Tile<kType>;
  constexpr bool kSigned = T::kEight || T::kLinear || kType == BlockType::MXFP4;
  // Types whose minimum is a whole number of steps lose it in the conversion.
  constexpr float kZero = kType == BlockType::Q4_0   ? 8
                          : kType == BlockType::Q5_0 ? 16
                          : kType == BlockType::Q6_K ? 32
                          : kType == BlockType::Q3_K ? 4
                                                     : 0;
  constexpr bool kAffine = T::kHasMinimum && kZero == 0;
  std::uint32_t levels[4];
  if constexpr (kType != BlockType::Q4_K) tile.levels(group, levels);
  __half2 scale[2][2], minimum[2][2];
  half_factors(tile, group, scale, minimum);
  const __half2 zero = __float2half2_rn(1024.0f + kZero + (kSigned ? 128.0f : 0.0f));
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      __half2 even, odd;
      if constexpr (kType == BlockType::Q4_K) {
        nibbles_to_halves(tile.q[2 * step + half], group, even, odd);
      } else {
        bytes_to_halves<kSigned>(levels[2 * step + half], zero, even, odd);
      }
      if constexpr (kAffine) {
        even = __hfma2(even, scale[step][half], minimum[step][half]);
        odd = __hfma2(odd, scale[step][half], minimum[step][half]);
      } else {
        even = __hmul2(even, scale[step][half]);
        odd = __hmul2(odd, scale[step][half]);
      }
      a[step][half] = as_bits(even);
      a[step][2 + half] = as_bits(odd);
    }
}

// The tokens of one block: rows of halves, given directly or through a list.
struct TokenTile {
  HalfRows x;
  const std::int32_t* list;  // null: token i is row first + i
  int divisor;               // of the list's entries: pair -> row
  int first, n;              // tokens of this tile

  __device__ const __half* piece(int i, int piece) const {
    return x.piece(list == nullptr ? first + i : list[first + i] / divisor, piece);
  }
};

// Pairs of column tiles of tokens on their way through a ring in shared memory. Driven by all
// threads of the block, each of which brings a piece of 16 bytes of each 32nd or 64th token.
template <int kMost>
class TokenRing {
 public:
  // `places` for tiles, an even number: all there are, or kTileStages at least.
  template <typename Weights>
  __device__ TokenRing(char* shared, const TokenTile& tokens, int tiles, int places,
                       Weights& weights)
      : shared_(shared), tokens_(tokens.n), left_(tiles), places_(places) {
    weights.begin();
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_[i] = tokens.piece(min(token(i), tokens.n - 1), piece());
    copy();
    weights.begin_behind();
  }
  // Waits for the next pair, whose place in shared memory it returns, and asks for the one after
  // it, into the place of the pair before the last: every warp has waited for that one's products.
  // Weights are asked for behind the tokens: of those, kPending groups may be on their way still.
  template <typename Weights>
  __device__ __forceinline__ int turn(Weights& weights) {
    weights.early();
    copy_wait<Weights::kPending>();
    async_fence();
    __syncthreads();
    copy();
    weights.turn();
    return place();
  }
  // The same of tokens that are all there.
  template <typename Weights>
  __device__ __forceinline__ int pass(Weights& weights) {
    weights.early();
    copy_wait<Weights::kPending>();
    __syncwarp();
    weights.turn();
    return place();
  }

 private:
  static constexpr int kApart = kTileThreads<kMost> / 8, kCount = kMost / kApart;
  __device__ static int token(int i) {
    return static_cast<int>(threadIdx.x) / 8 + kApart * i;
  }
  __device__ static int piece() {
    return static_cast<int>(threadIdx.x) % 8;
  }

  __device__ __forceinline__ void copy() {
    char* to = shared_ + free_ + token(0) * 128 + (piece() ^ token(0) % 8) * 16;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
      if (tile < left_)
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          copy_async(to + tile * kStageBytes<kMost> + i * kApart * 128, from_[i] + tile * kHalfTile,
                     token(i) < tokens_);
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_[i] += 2 * kHalfTile;
    left_ -= 2;
    step(free_);
    copy_commit();
  }
  __device__ __forceinline__ int place() {
    const int at = at_;
    step(at_);
    return at;
  }
  __device__ __forceinline__ void step(int& place) const {
    place += 2 * kStageBytes<kMost>;
    if (place == places_ * kStageBytes<kMost>) place = 0;
  }

  char* shared_;
  const __half* from_[kCount];
  int tokens_, left_;  // tokens of a tile, and tiles not asked for
  int places_;
  int free_ = 0, at_ = 0;  // where the next copies go, and the next products' tokens stand
};

// One 16 x 128 step of a warp without the warpgroup instruction.
template <int kColumns>
__device__ __forceinline__ void warp_multiply(float* acc, const std::uint32_t (&a)[4],
                                              const char* stage, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    std::uint32_t b[4];
    const int token = 16 * j + lane / 16 * 8 + lane % 8, piece = 2 * step + lane / 8 % 2;
    load_matrices(b, stage + token * 128 + (piece ^ (token % 8)) * 16);
    float(&low)[4] = *reinterpret_cast<float(*)[4]>(acc + 8 * j);
    float(&high)[4] = *reinterpret_cast<float(*)[4]>(acc + 8 * j + 4);
    multiply_f16(low, a, b[0], b[1]);
    multiply_f16(high, a, b[2], b[3]);
  }
}

#ifdef TESSERA_GPU_WGMMA
// The products of one tile. A half is decoded while those of the half before run: at the end those
// of the second are still under way.
template <BlockType kType, int kColumns>
__device__ __forceinline__ void multiply_stage(const Tile<kType>& tile, const char* shared,
                                               int offset, float* acc) {
  const std::uint64_t b =
      swizzled_tile(shared_address(shared)) + static_cast<unsigned>(offset) / 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t a[2][4];
    decode_group(tile, half, a);
    group_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step)
      group_multiply<kColumns>(acc, a[step], b + 2 * static_cast<unsigned>(2 * half + step));
    group_commit();
    group_wait<1>();
  }
}
template <int kColumns>
__device__ __forceinline__ void end_products(float* acc) {
  group_wait<0>();
  group_results<kColumns>(acc);
}
#else
template <BlockType kType, int kColumns>
__device__ __forceinline__ void multiply_stage(const Tile<kType>& tile, const char* shared,
                                               int offset, float* acc) {
  std::uint32_t a[2][2][4];
  decode_group(tile, 0, a[0]);
  decode_group(tile, 1, a[1]);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    warp_multiply<kColumns>(acc, a[step / 2][step % 2], shared + offset, step);
}
template <int kColumns>
__device__ __forceinline__ void end_products(float*) {}
#endif

// acc[4 * j + i] of multiply_f16 for this warp's row tile and the columns 8j..: all column tiles.
// `row_tile` may lie past the matrix: then the warp computes with what is there and stores nothing.
template <BlockType kType, int kColumns, int kMost>
__device__ void multiply_tiles(const Planes& w, int row_tile, const TokenTile& tokens, char* shared,
                               float* acc) {
  row_tile = min(row_tile, w.row_tiles - 1);
  const int n = w.col_tiles;
  char* behind = shared + kTileStages * kStageBytes<kMost>;
  WeightFeed<kType, kMost, false> weights(w, row_tile, 1, behind);
  TokenRing<kMost> ring(shared, tokens, n, kTileStages, weights);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0;
  group_results<kColumns>(acc);  // else ptxas has each product wait for the one before it
  for (int tile = 0; tile < n; tile += 2) {
    const int at = ring.turn(weights);
    multiply_stage<kType, kColumns>(weights.first(), shared, at, acc);
    if (tile + 1 == n) break;
    multiply_stage<kType, kColumns>(weights.second(), shared, at + kStageBytes<kMost>, acc);
  }
  end_products<kColumns>(acc);
  copy_wait<0>();
  __syncthreads();
}

}  // namespace tessera::gpu
