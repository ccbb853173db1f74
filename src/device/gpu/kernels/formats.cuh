// How a warp reads one 16 x 64 tile of each quantised type: raw loads, the levels as signed bytes
// in the operand order of a matrix instruction, and the factors that turn levels into weights:
//
//   weight = scale * level - minimum      per row and 32 columns, or per 16 where kParts is 2
//
//   Tile<BlockType::Q4_K> tile;
//   tile.load(planes, row_tile, col_tile, lane);          // loads only
//   tile.levels(group, a);                                // a[0] row g low, a[1] row g + 8 low,
//   ... tile.factors(group, scale, minimum);                  // [part][half]
#pragma once

#include "device/gpu/kernels/kernels.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

// A matrix as the kernels take it.
struct Planes {
  const std::byte* data = nullptr;
  std::int64_t extra = 0, scales = 0, supers = 0;  // offsets; the quants stand at 0
  int row_tiles = 0, col_tiles = 0;
  int supers_a_row = 0;
  int quant_tile_bytes = 0, extra_tile_bytes = 0, scale_tile_bytes = 0;
  int rows = 0, cols = 0;
  BlockType type = BlockType::F32;
};

inline Planes planes_of(const Matrix& m) {
  const PlaneLayout layout = plane_layout(m.type, m.rows, m.cols);
  return {.data = m.data,
          .extra = layout.extra,
          .scales = layout.scales,
          .supers = layout.supers,
          .row_tiles = static_cast<int>(row_tiles(m.rows)),
          .col_tiles = static_cast<int>(layout.col_tiles),
          .supers_a_row = (m.cols + kSuperCols - 1) / kSuperCols,
          .quant_tile_bytes = layout.quant_bytes,
          .extra_tile_bytes = layout.extra_bytes,
          .scale_tile_bytes = layout.scale_bytes,
          .rows = m.rows,
          .cols = m.cols,
          .type = m.type};
}

__device__ __forceinline__ float half_bits(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// (word & mask) | bits, as one instruction: of two constants the compiler makes two.
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t word, std::uint32_t mask,
                                                     std::uint32_t bits) {
#ifdef TESSERA_GPU_PTX
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
  return out;
#else
  return (word & mask) | bits;
#endif
}

// What a lane has of the scales of a tile in Q4_K or Q5_K: a scale and a min of six bits for each
// of [group][half], pairs 0 to 3. Most stand where a mask and an exponent make floats of them, and
// of a pair, whose two numbers are 16 bits apart, halves (weight_planes.h).
struct SixBits {
  std::uint32_t low, high;  // 32 and 16 bits

  // Number i of [pair][scale, min], divided by 2^`below`.
  __device__ __forceinline__ float number(int i, int below = 0) const {
    const std::uint32_t word = i < 3 ? low : i == 3 ? low >> 10 : i < 6 ? high : last();
    const int at = i == 1 || i == 7 ? 16 : i == 2 ? 6 : i == 3 ? 12 : i == 4 ? 2 : i == 5 ? 10 : 0;
    const std::uint32_t one = static_cast<std::uint32_t>(127 + 23 - at - below) << 23;
    return __uint_as_float(select_bits(word, 63u << at, one)) - __uint_as_float(one);
  }
  // Scale and min of a pair.
  __device__ __forceinline__ __half2 halves(int pair) const {
    if (pair == 2)
      return __hsub2(raised(spread(), 0x00fc00fcu, 0x5c005c00u), __float2half2_rn(256));
    const std::uint32_t word = pair == 0 ? low : pair == 1 ? low >> 6 : last();
    return __hsub2(raised(word, 0x003f003fu, 0x64006400u), __float2half2_rn(1024));
  }

 private:
  __device__ __forceinline__ static __half2 raised(std::uint32_t word, std::uint32_t mask,
                                                   std::uint32_t bits) {
    return as_half2(select_bits(word, mask, bits));
  }
  // The two bytes of the upper word, 16 bits apart.
  __device__ __forceinline__ std::uint32_t spread() const {
    return permute(high, 0, 0x4140u);
  }
  // Pair 3: its lower two bits stand there, the other four on top of the lower word's halves.
  __device__ __forceinline__ std::uint32_t last() const {
    return (spread() & ~0x003c003cu) | ((low >> 10) & 0x003c003cu);
  }
};
__device__ __forceinline__ int signed_level(std::uint32_t word, int i) {
  return static_cast<signed char>((word >> (8 * i)) & 255u);
}
__device__ __forceinline__ float signed_byte_at(std::uint32_t word, int i) {
  return static_cast<float>(signed_level(word, i));
}

// Levels of 16-entry tables for the 8 nibbles of `word`: the low ones, then the high ones.
__device__ __forceinline__ void look_up(std::uint32_t word, const std::uint32_t (&table)[4],
                                        std::uint32_t& low, std::uint32_t& high) {
  std::uint32_t mixed[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t select = word >> (16 * i);
    const std::uint32_t first = permute(table[0], table[1], select & 0x7777u);
    const std::uint32_t second = permute(table[2], table[3], select & 0x7777u);
    mixed[i] = permute(first, second, 0x3210u | ((select & 0x8888u) >> 1));
  }
  low = permute(mixed[0], mixed[1], 0x6420u);
  high = permute(mixed[0], mixed[1], 0x7531u);
}

template <BlockType kType>
struct Tile {
  static constexpr bool kEight = kType == BlockType::Q8_0;
  static constexpr bool kTwo = kType == BlockType::Q2_K || kType == BlockType::Q3_K;
  static constexpr bool kFifthBit = kType == BlockType::Q5_0 || kType == BlockType::Q5_1 ||
                                    kType == BlockType::Q5_K || kType == BlockType::Q3_K;
  static constexpr bool kSixth = kType == BlockType::Q6_K;
  static constexpr bool kLinear = kType == BlockType::IQ4_NL || kType == BlockType::IQ4_XS;
  static constexpr bool kWideScale = kType == BlockType::Q4_1 || kType == BlockType::Q5_1;
  static constexpr bool kByteScale = kType == BlockType::IQ4_XS || kType == BlockType::MXFP4;
  static constexpr bool kPairSuper =
      kType == BlockType::Q4_K || kType == BlockType::Q5_K || kType == BlockType::Q2_K;
  static constexpr bool kSingleSuper =
      kType == BlockType::Q3_K || kType == BlockType::Q6_K || kType == BlockType::IQ4_XS;
  static constexpr bool kSixBits = kType == BlockType::Q4_K || kType == BlockType::Q5_K;
  static constexpr int kParts =
      kType == BlockType::Q2_K || kType == BlockType::Q3_K || kType == BlockType::Q6_K ? 2 : 1;
  static constexpr bool kHasMinimum = !(kEight || kLinear || kType == BlockType::MXFP4);
  static constexpr int kQuantWords = kEight ? 8 : kTwo ? 2 : 4;
  static constexpr int kScaleWords = kWideScale ? 4 : kByteScale ? 1 : 2;
  static constexpr int kQuantBytes = kEight ? 1024 : kTwo ? 256 : 512;  // of a tile
  static constexpr int kExtraBytes = kSixth ? 256 : kFifthBit ? 128 : 0;
  static constexpr int kScaleBytes = kSixBits ? 48 : kScaleWords * 32;

  std::uint32_t q[kQuantWords];
  std::uint32_t x[2];
  std::uint32_t s[kScaleWords];
  std::uint32_t d[2];

  // Where a lane's parts of a row tile begin, for a loop over its column tiles.
  struct At {
    const std::byte *quants, *extra, *scales, *supers;
    int rest;  // kSixBits: from the lower words of scales to the upper ones

    // So many row tiles further.
    __device__ __forceinline__ void skip(const Planes& p, int row_tiles) {
      const int tiles = row_tiles * p.col_tiles;
      quants += tiles * kQuantBytes;
      extra += tiles * kExtraBytes;
      scales += tiles * kScaleBytes;
      supers += row_tiles * p.supers_a_row * (kPairSuper ? 64 : 32);
    }
  };
  __device__ __forceinline__ static At at(const Planes& p, int row_tile, int lane) {
    const std::int64_t tile = static_cast<std::int64_t>(row_tile) * p.col_tiles;
    const int g = lane / 4;
    return {
        p.data + tile * kQuantBytes + lane * (kTwo ? 8 : 16),
        p.data + p.extra + tile * kExtraBytes + lane * (kSixth ? 8 : 4),
        p.data + p.scales + tile * kScaleBytes + scales_of(g),
        p.data + p.supers +
            (static_cast<std::int64_t>(row_tile) * p.supers_a_row * 8 + g) * (kPairSuper ? 8 : 4),
        rest_of(g)};
  }

  __device__ __forceinline__ void load(const At& from, int col_tile) {
    load_parts({from.quants + col_tile * kQuantBytes, from.extra + col_tile * kExtraBytes,
                from.scales + col_tile * kScaleBytes,
                from.supers + static_cast<unsigned>(col_tile) / 4 * (kPairSuper ? 64 : 32),
                from.rest},
               [](const auto* at) { return load_stream(at); },
               [](const auto* at) { return __ldg(at); });
  }
  // Of one tile in shared memory, where each plane's part stands.
  __device__ __forceinline__ void load_here(const At& tile, int lane) {
    const int g = lane / 4;
    const auto read = [](const auto* at) { return *at; };
    load_parts({tile.quants + lane * (kTwo ? 8 : 16), tile.extra + lane * (kSixth ? 8 : 4),
                tile.scales + scales_of(g), tile.supers + g * (kPairSuper ? 8 : 4), rest_of(g)},
               read, read);
  }
  __device__ __forceinline__ void load(const Planes& p, int row_tile, int col_tile, int lane) {
    load(at(p, row_tile, lane), col_tile);
  }

  __device__ __forceinline__ void levels(int group, std::uint32_t (&a)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t& low = a[half];
      std::uint32_t& high = a[2 + half];
      if constexpr (kEight) {
        low = q[4 * group + half];
        high = q[4 * group + 2 + half];
      } else if constexpr (kTwo) {
        low = (q[half] >> (4 * group)) & 0x03030303u;
        high = (q[half] >> (4 * group + 2)) & 0x03030303u;
        if constexpr (kFifthBit) {
          low |= ((x[0] >> (4 * half + 2 * group)) & 0x01010101u) << 2;
          high |= ((x[0] >> (4 * half + 2 * group + 1)) & 0x01010101u) << 2;
        }
      } else {
        const std::uint32_t word = q[2 * group + half];
        if constexpr (kLinear) {
          constexpr std::uint32_t kTable[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
          look_up(word, kTable, low, high);
        } else if constexpr (kType == BlockType::MXFP4) {
          constexpr std::uint32_t kTable[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
          look_up(word, kTable, low, high);
        } else if constexpr (kType == BlockType::Q4_K) {
          low = (q[half] >> (4 * group)) & 0x0f0f0f0fu;
          high = (q[2 + half] >> (4 * group)) & 0x0f0f0f0fu;
        } else if constexpr (kSixth) {
          low = word & 0x3f3f3f3fu;
          high = half == 0 ? x[group] & 0x3f3f3f3fu
                           : ((q[2 * group] >> 2) & 0x30303030u) |
                                 ((q[2 * group + 1] >> 4) & 0x0c0c0c0cu) |
                                 ((x[group] >> 6) & 0x03030303u);
        } else {
          low = word & 0x0f0f0f0fu;
          high = (word >> 4) & 0x0f0f0f0fu;
          if constexpr (kFifthBit) {
            low |= ((x[0] >> (4 * half + 2 * group)) & 0x01010101u) << 4;
            high |= ((x[0] >> (4 * half + 2 * group + 1)) & 0x01010101u) << 4;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void factors(int group, float (&scale)[kParts][2],
                                          float (&minimum)[kParts][2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kWideScale) {
        const std::uint32_t pair = s[2 * group + half];
        scale[0][half] = half_bits(pair & 0xffffu);
        minimum[0][half] = -half_bits(pair >> 16);
      } else if constexpr (kType == BlockType::MXFP4) {
        const std::uint32_t e = (s[0] >> (8 * (2 * group + half))) & 255u;
        scale[0][half] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        minimum[0][half] = 0.0f;
      } else if constexpr (kType == BlockType::IQ4_XS) {
        scale[0][half] =
            half_bits((d[0] >> (16 * half)) & 0xffffu) * signed_byte_at(s[0], 2 * group + half);
        minimum[0][half] = 0.0f;
      } else if constexpr (kType == BlockType::Q4_K || kType == BlockType::Q5_K) {
        const int i = 4 * group + 2 * half;
        scale[0][half] = half_bits(d[half] & 0xffffu) * six_bits().number(i);
        minimum[0][half] = half_bits(d[half] >> 16) * six_bits().number(i + 1);
      } else if constexpr (kType == BlockType::Q2_K) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const std::uint32_t pair = (s[group] >> (8 * (2 * half + part))) & 255u;
          scale[part][half] = half_bits(d[half] & 0xffffu) * static_cast<float>(pair & 15u);
          minimum[part][half] = half_bits(d[half] >> 16) * static_cast<float>(pair >> 4);
        }
      } else if constexpr (kSingleSuper) {  // Q3_K, Q6_K
        constexpr float kZero = kSixth ? 32.0f : 4.0f;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          scale[part][half] = half_bits((d[0] >> (16 * half)) & 0xffffu) *
                              signed_byte_at(s[group], 2 * half + part);
          minimum[part][half] = kZero * scale[part][half];
        }
      } else {  // one f16 scale
        constexpr float kZero = kType == BlockType::Q4_0   ? 8.0f
                                : kType == BlockType::Q5_0 ? 16.0f
                                                           : 0.0f;
        scale[0][half] = half_bits((s[group] >> (16 * half)) & 0xffffu);
        minimum[0][half] = kZero * scale[0][half];
      }
    }
  }

  __device__ __forceinline__ SixBits six_bits() const {
    return {s[0], s[1]};
  }

 private:
  __device__ __forceinline__ static int scales_of(int g) {
    return g * (kSixBits ? 4 : kScaleWords * 4);
  }
  __device__ __forceinline__ static int rest_of(int g) {
    return kSixBits ? 32 - 2 * g : 0;
  }
  // This lane's parts, by what reads bytes that nobody else does, and by what reads the others.
  template <typename Own, typename Common>
  __device__ __forceinline__ void load_parts(const At& at, Own own, Common common) {
    const auto words = [](const std::byte* from, auto* type) {
      return reinterpret_cast<decltype(type)>(from);
    };
    const uint4* four = nullptr;
    const uint2* two = nullptr;
    const std::uint32_t* one = nullptr;
    if constexpr (kTwo)
      put(q, own(words(at.quants, two)));
    else
      put(q, own(words(at.quants, four)));
    if constexpr (kEight) put(q + 4, own(words(at.quants + 512, four)));
    if constexpr (kFifthBit) x[0] = own(words(at.extra, one));
    if constexpr (kSixth) put(x, own(words(at.extra, two)));
    if constexpr (kSixBits) {
      const std::uint16_t* rest = nullptr;
      s[0] = common(words(at.scales, one));
      s[1] = common(words(at.scales + at.rest, rest));
    } else if constexpr (kScaleWords == 4)
      put(s, common(words(at.scales, four)));
    else if constexpr (kScaleWords == 2)
      put(s, common(words(at.scales, two)));
    else
      s[0] = common(words(at.scales, one));
    if constexpr (kPairSuper)
      put(d, common(words(at.supers, two)));
    else if constexpr (kSingleSuper)
      d[0] = common(words(at.supers, one));
  }
  __device__ __forceinline__ static void put(std::uint32_t* to, uint4 v) {
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  __device__ __forceinline__ static void put(std::uint32_t* to, uint2 v) {
    to[0] = v.x, to[1] = v.y;
  }
};

// Calls fn<type>() for a quantised type known at run time.
#define TESSERA_GPU_FOR_TYPE(type, CALL) \
  switch (type) {                        \
    case BlockType::Q4_0:                \
      CALL(BlockType::Q4_0);             \
      break;                             \
    case BlockType::Q4_1:                \
      CALL(BlockType::Q4_1);             \
      break;                             \
    case BlockType::Q5_0:                \
      CALL(BlockType::Q5_0);             \
      break;                             \
    case BlockType::Q5_1:                \
      CALL(BlockType::Q5_1);             \
      break;                             \
    case BlockType::Q8_0:                \
      CALL(BlockType::Q8_0);             \
      break;                             \
    case BlockType::Q2_K:                \
      CALL(BlockType::Q2_K);             \
      break;                             \
    case BlockType::Q3_K:                \
      CALL(BlockType::Q3_K);             \
      break;                             \
    case BlockType::Q4_K:                \
      CALL(BlockType::Q4_K);             \
      break;                             \
    case BlockType::Q5_K:                \
      CALL(BlockType::Q5_K);             \
      break;                             \
    case BlockType::Q6_K:                \
      CALL(BlockType::Q6_K);             \
      break;                             \
    case BlockType::IQ4_NL:              \
      CALL(BlockType::IQ4_NL);           \
      break;                             \
    case BlockType::IQ4_XS:              \
      CALL(BlockType::IQ4_XS);           \
      break;                             \
    case BlockType::MXFP4:               \
      CALL(BlockType::MXFP4);            \
      break;                             \
    case BlockType::F32:                 \
    case BlockType::F16:                 \
    case BlockType::BF16:                \
      break;                             \
  }

// The same for Q8_0 alone: code of its own keeps its registers few.
constexpr bool is_common(BlockType type) {
  return type == BlockType::Q8_0;
}
#define TESSERA_GPU_FOR_COMMON(type, CALL) \
  switch (type) {                          \
    case BlockType::Q8_0:                  \
      CALL(BlockType::Q8_0);               \
      break;                               \
    default:                               \
      break;                               \
  }

}  // namespace tessera::gpu
