#include "device/gpu/kernels/weight_planes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/block_layout.h"

namespace tessera::gpu {
namespace {

constexpr int kGroup = 32;
constexpr std::uint32_t kNibbles = 0x0f0f0f0fu;
constexpr std::uint32_t kPairs = 0x03030303u;
constexpr std::uint32_t kBits = 0x01010101u;

// The levels of one group of 32: byte j of word i is element 4i + j.
using Levels = std::array<std::uint32_t, 8>;

std::uint32_t word(const void* at) {
  std::uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

// Adds bits to a word.
void put_word(std::uint8_t* plane, unsigned index, std::uint32_t value) {
  const std::uint32_t all = word(plane + 4 * index) | value;
  std::memcpy(plane + 4 * index, &all, 4);
}

// Four consecutive bits, one a byte.
std::uint32_t spread(std::uint32_t bits) {
  return (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
}

Levels level_nibbles(const std::uint8_t* q) {
  Levels level;
  for (unsigned i = 0; i < 4; ++i) {
    level[i] = word(q + 4 * i) & kNibbles;
    level[i + 4] = (word(q + 4 * i) >> 4) & kNibbles;
  }
  return level;
}

template <typename Block>
Levels with_fifth_bits(const Block& block) {
  Levels level = level_nibbles(block.q.data());
  const std::uint32_t high = word(block.qh.data());
  for (unsigned i = 0; i < 8; ++i) level[i] |= spread((high >> (4 * i)) & 15) << 4;
  return level;
}

Levels levels(const BlockQ4_0& b, unsigned) {
  return level_nibbles(b.q.data());
}
Levels levels(const BlockQ4_1& b, unsigned) {
  return level_nibbles(b.q.data());
}
Levels levels(const BlockQ5_0& b, unsigned) {
  return with_fifth_bits(b);
}
Levels levels(const BlockQ5_1& b, unsigned) {
  return with_fifth_bits(b);
}
Levels levels(const BlockIQ4_NL& b, unsigned) {
  return level_nibbles(b.q.data());
}
Levels levels(const BlockMXFP4& b, unsigned) {
  return level_nibbles(b.q.data());
}
Levels levels(const BlockIQ4_XS& b, unsigned group) {
  return level_nibbles(b.q.data() + 16 * group);
}
Levels levels(const BlockQ8_0& b, unsigned) {
  Levels level;
  std::memcpy(level.data(), b.q.data(), sizeof(level));
  return level;
}
Levels levels(const BlockQ4_K& b, unsigned group) {
  Levels level;
  for (unsigned i = 0; i < 8; ++i)
    level[i] = (word(b.q.data() + 32 * (group / 2) + 4 * i) >> (4 * (group % 2))) & kNibbles;
  return level;
}
Levels levels(const BlockQ5_K& b, unsigned group) {
  Levels level;
  for (unsigned i = 0; i < 8; ++i)
    level[i] = ((word(b.q.data() + 32 * (group / 2) + 4 * i) >> (4 * (group % 2))) & kNibbles) |
               ((word(b.high.data() + 4 * i) >> group) & kBits) << 4;
  return level;
}
Levels levels(const BlockQ2_K& b, unsigned group) {
  Levels level;
  for (unsigned i = 0; i < 8; ++i)
    level[i] = (word(b.q.data() + 32 * (group / 4) + 4 * i) >> (2 * (group % 4))) & kPairs;
  return level;
}
Levels levels(const BlockQ3_K& b, unsigned group) {
  Levels level;
  for (unsigned i = 0; i < 8; ++i)
    level[i] = ((word(b.q.data() + 32 * (group / 4) + 4 * i) >> (2 * (group % 4))) & kPairs) |
               ((word(b.high.data() + 4 * i) >> group) & kBits) << 2;
  return level;
}
Levels levels(const BlockQ6_K& b, unsigned group) {
  const unsigned h = group / 4, j = group % 4;
  Levels level;
  for (unsigned i = 0; i < 8; ++i)
    level[i] = ((word(b.low.data() + 64 * h + 32 * (j % 2) + 4 * i) >> (4 * (j / 2))) & kNibbles) |
               ((word(b.high.data() + 32 * h + 4 * i) >> (2 * j)) & kPairs) << 4;
  return level;
}

std::uint8_t unpack_q3_scale(const std::array<std::uint8_t, 12>& s, unsigned j) {
  const unsigned low = j < 8 ? s[j] & 15u : s[j - 8] >> 4u;
  const unsigned high = (s[8 + j % 4] >> (2 * (j / 4))) & 3u;
  return static_cast<std::uint8_t>(static_cast<int>(low | high << 4) - 32);
}

// What the scales plane holds of one row's group.
template <typename Block>
void put_scale(const Block& b, unsigned group, std::uint8_t* out) {
  if constexpr (requires { b.m; }) {
    std::memcpy(out, &b.d, 2);
    std::memcpy(out + 2, &b.m, 2);
  } else if constexpr (std::is_same_v<Block, BlockMXFP4>) {
    out[0] = b.e;
  } else if constexpr (std::is_same_v<Block, BlockIQ4_XS>) {
    const unsigned low = (b.scales_low[group / 2] >> (4 * (group % 2))) & 15u;
    const unsigned high = b.scales_high[0] | unsigned{b.scales_high[1]} << 8;
    out[0] =
        static_cast<std::uint8_t>(static_cast<int>(low | ((high >> (2 * group)) & 3u) << 4) - 32);
  } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    out[0] = unpack_q3_scale(b.scales, 2 * group);
    out[1] = unpack_q3_scale(b.scales, 2 * group + 1);
  } else if constexpr (std::is_same_v<Block, BlockQ2_K> || std::is_same_v<Block, BlockQ6_K>) {
    out[0] = static_cast<std::uint8_t>(b.scales[2 * group]);
    out[1] = static_cast<std::uint8_t>(b.scales[2 * group + 1]);
  } else {
    std::memcpy(out, &b.d, 2);
  }
}

// Scale and min of one row's group, in the twelve bits that are theirs of a tile's 48 for its g.
template <typename Block>
void put_six_bits(const Block& b, unsigned within, unsigned row, unsigned group,
                  std::uint8_t* tile) {
  const ScalesAndMins pairs = unpack_scales(b.scales);
  const std::uint32_t both = pairs.scale[within] | pairs.min[within] << 16;
  const std::uint32_t two_bits = both & 0x00030003u, four_bits = both >> 2 & 0x000f000fu;
  const auto bytes = [](std::uint32_t x) { return (x | x >> 8) & 0xffffu; };
  const unsigned g = row % 8, pair = 2 * group + row / 8;
  const std::uint32_t low[] = {both, both << 6, 0, four_bits << 12};
  const std::uint32_t high[] = {0, 0, bytes(both << 2), bytes(two_bits)};
  put_word(tile, g, low[pair]);
  put_word(tile, 8 + g / 2, high[pair] << (16 * (g % 2)));
}

template <typename Block>
void put_super(const Block& b, std::uint8_t* out) {
  if constexpr (requires { b.d; }) std::memcpy(out, &b.d, 2);
  if constexpr (requires { b.dmin; }) std::memcpy(out + 2, &b.dmin, 2);
}

enum class Quants { two_bit, four_bit, four_bit_pairs, six_bit, eight_bit };
enum class Extra { none, one_bit, two_bit };

struct Form {
  Quants quants;
  Extra extra;
  int scale_bits;  // a row and group
  int super;       // bytes a row and 256 columns
};

Form plane_form_of(BlockType type) {
  switch (type) {
    case BlockType::Q4_0:
    case BlockType::IQ4_NL:
      return {Quants::four_bit, Extra::none, 16, 0};
    case BlockType::Q4_1:
      return {Quants::four_bit, Extra::none, 32, 0};
    case BlockType::Q5_0:
      return {Quants::four_bit, Extra::one_bit, 16, 0};
    case BlockType::Q5_1:
      return {Quants::four_bit, Extra::one_bit, 32, 0};
    case BlockType::Q8_0:
      return {Quants::eight_bit, Extra::none, 16, 0};
    case BlockType::Q2_K:
      return {Quants::two_bit, Extra::none, 16, 4};
    case BlockType::Q3_K:
      return {Quants::two_bit, Extra::one_bit, 16, 2};
    case BlockType::Q4_K:
      return {Quants::four_bit_pairs, Extra::none, 12, 4};
    case BlockType::Q5_K:
      return {Quants::four_bit, Extra::one_bit, 12, 4};
    case BlockType::Q6_K:
      return {Quants::six_bit, Extra::two_bit, 16, 2};
    case BlockType::IQ4_XS:
      return {Quants::four_bit, Extra::none, 8, 2};
    case BlockType::MXFP4:
      return {Quants::four_bit, Extra::none, 8, 0};
    case BlockType::F32:
    case BlockType::F16:
    case BlockType::BF16:
      break;
  }
  return {Quants::four_bit, Extra::none, 0, 0};
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

// One tile's planes, zeroed; put() adds the levels of one group of one row.
struct Tile {
  Form form;
  std::uint8_t* quants;
  std::uint8_t* extra;

  void put(unsigned row, unsigned group, const Levels& level) const {
    const unsigned g = row % 8, half = row / 8;
    for (unsigned t = 0; t < 4; ++t) {
      const unsigned lane = 4 * g + t;
      const std::uint32_t low = level[t], high = level[t + 4];
      if (form.quants == Quants::eight_bit) {
        put_word(quants, (group * 32 + lane) * 4 + half, low);
        put_word(quants, (group * 32 + lane) * 4 + 2 + half, high);
        continue;
      }
      if (form.quants == Quants::four_bit_pairs) {
        put_word(quants, lane * 4 + half, low << (4 * group));
        put_word(quants, lane * 4 + 2 + half, high << (4 * group));
      } else if (form.quants == Quants::six_bit) {
        put_six(lane, half, group, low, high);
      } else if (form.quants == Quants::four_bit) {
        put_word(quants, lane * 4 + 2 * group + half, (low & kNibbles) | (high & kNibbles) << 4);
        put_extra(lane, half, group, low >> 4, high >> 4);
      } else {
        const unsigned shift = 4 * group;
        put_word(quants, lane * 2 + half, (low & kPairs) << shift | (high & kPairs) << (shift + 2));
        put_extra(lane, half, group, low >> 2, high >> 2);
      }
    }
  }

  void put_extra(unsigned lane, unsigned half, unsigned group, std::uint32_t low,
                 std::uint32_t high) const {
    if (form.extra == Extra::one_bit) {
      const unsigned shift = 4 * half + 2 * group;
      put_word(extra, lane, (low & kBits) << shift | (high & kBits) << (shift + 1));
    }
  }

  // Three of a group's four words stand whole, the fourth in their upper bits.
  void put_six(unsigned lane, unsigned half, unsigned group, std::uint32_t low,
               std::uint32_t high) const {
    put_word(quants, lane * 4 + 2 * group + half, low);
    if (half == 0) return put_word(extra, lane * 2 + group, high);
    put_word(quants, lane * 4 + 2 * group, (high & (kPairs << 4)) << 2);
    put_word(quants, lane * 4 + 2 * group + 1, (high & (kPairs << 2)) << 4);
    put_word(extra, lane * 2 + group, (high & kPairs) << 6);
  }
};

template <typename Block>
void repack_blocks(int block_elems, const PlaneLayout& layout, const Form& form,
                   const std::byte* src, std::int64_t rows, std::int64_t cols,
                   std::int64_t row_tile, std::uint8_t* dst) {
  const std::int64_t groups = cols / kGroup;
  const unsigned groups_a_block = static_cast<unsigned>(block_elems / kGroup);
  const std::int64_t blocks_a_row = cols / block_elems;
  const std::int64_t supers = (cols + kSuperCols - 1) / kSuperCols;
  const std::int64_t n = std::min<std::int64_t>(kTileRows, rows - row_tile * kTileRows);
  for (unsigned row = 0; row < static_cast<unsigned>(n); ++row) {
    const std::byte* from =
        src + (row_tile * kTileRows + row) * blocks_a_row * std::int64_t{sizeof(Block)};
    const unsigned place = row % 8 * 2 + row / 8;
    Block block;
    for (std::int64_t at = 0; at < groups; ++at) {
      const unsigned within = static_cast<unsigned>(at) % groups_a_block;
      if (within == 0) {
        std::memcpy(&block, from + at / groups_a_block * std::int64_t{sizeof(Block)},
                    sizeof(Block));
        if (form.super > 0)
          put_super(block, dst + layout.supers +
                               (row_tile * supers + at / groups_a_block) * layout.super_bytes +
                               place * static_cast<unsigned>(form.super));
      }
      const std::int64_t tile = row_tile * layout.col_tiles + at / 2;
      const unsigned group = static_cast<unsigned>(at % 2);
      const Tile planes{form, dst + layout.quants + tile * layout.quant_bytes,
                        dst + layout.extra + tile * layout.extra_bytes};
      planes.put(row, group, levels(block, within));
      std::uint8_t* scales = dst + layout.scales + tile * layout.scale_bytes;
      if constexpr (std::is_same_v<Block, BlockQ4_K> || std::is_same_v<Block, BlockQ5_K>)
        put_six_bits(block, within, row, group, scales);
      else
        put_scale(block, within,
                  scales + ((row % 8 * 2 + group) * 2 + row / 8) *
                               static_cast<unsigned>(form.scale_bits / 8));
    }
  }
}

template <typename Fn>
void with_block(BlockType type, Fn fn) {
  switch (type) {
    case BlockType::Q4_0:
      return fn(BlockQ4_0{}, 32);
    case BlockType::Q4_1:
      return fn(BlockQ4_1{}, 32);
    case BlockType::Q5_0:
      return fn(BlockQ5_0{}, 32);
    case BlockType::Q5_1:
      return fn(BlockQ5_1{}, 32);
    case BlockType::Q8_0:
      return fn(BlockQ8_0{}, 32);
    case BlockType::Q2_K:
      return fn(BlockQ2_K{}, 256);
    case BlockType::Q3_K:
      return fn(BlockQ3_K{}, 256);
    case BlockType::Q4_K:
      return fn(BlockQ4_K{}, 256);
    case BlockType::Q5_K:
      return fn(BlockQ5_K{}, 256);
    case BlockType::Q6_K:
      return fn(BlockQ6_K{}, 256);
    case BlockType::IQ4_NL:
      return fn(BlockIQ4_NL{}, 32);
    case BlockType::IQ4_XS:
      return fn(BlockIQ4_XS{}, 256);
    case BlockType::MXFP4:
      return fn(BlockMXFP4{}, 32);
    case BlockType::F32:
    case BlockType::F16:
    case BlockType::BF16:
      return;
  }
}

}  // namespace

PlaneLayout plane_layout(BlockType type, std::int64_t rows, std::int64_t cols) {
  PlaneLayout layout;
  if (is_plain(type)) {
    layout.bytes = aligned(rows * cols * (type == BlockType::F32 ? 4 : 2));
    return layout;
  }
  const Form form = plane_form_of(type);
  constexpr int kElems = kTileRows * kTileCols;
  layout.row_tiles = row_tiles(rows);
  layout.col_tiles = (cols + kTileCols - 1) / kTileCols;
  layout.quant_bytes = form.quants == Quants::eight_bit ? kElems
                       : form.quants == Quants::two_bit ? kElems / 4
                                                        : kElems / 2;
  layout.extra_bytes = form.extra == Extra::none      ? 0
                       : form.extra == Extra::one_bit ? kElems / 8
                                                      : kElems / 4;
  layout.scale_bytes = form.scale_bits * kTileRows * 2 / 8;
  layout.super_bytes = form.super * kTileRows;
  const std::int64_t tiles = layout.row_tiles * layout.col_tiles;
  const std::int64_t supers = layout.row_tiles * ((cols + kSuperCols - 1) / kSuperCols);
  layout.extra = aligned(tiles * layout.quant_bytes);
  layout.scales = layout.extra + aligned(tiles * layout.extra_bytes);
  layout.supers = layout.scales + aligned(tiles * layout.scale_bytes);
  layout.bytes = layout.supers + aligned(supers * layout.super_bytes);
  return layout;
}

void repack_rows(BlockType type, const std::byte* src, std::int64_t rows, std::int64_t cols,
                 std::int64_t tile_begin, std::int64_t tile_end, std::byte* dst) {
  if (is_plain(type)) {
    const std::int64_t row = cols * (type == BlockType::F32 ? 4 : 2);
    const std::int64_t begin = tile_begin * kTileRows;
    const std::int64_t end = std::min(rows, tile_end * kTileRows);
    if (end > begin)
      std::memcpy(dst + begin * row, src + begin * row,
                  static_cast<std::size_t>((end - begin) * row));
    return;
  }
  const PlaneLayout layout = plane_layout(type, rows, cols);
  const Form form = plane_form_of(type);
  auto* out = reinterpret_cast<std::uint8_t*>(dst);
  const std::int64_t supers = (cols + kSuperCols - 1) / kSuperCols;
  for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const auto clear = [&](std::int64_t plane, std::int64_t bytes) {
      std::memset(out + plane + tile * bytes, 0, static_cast<std::size_t>(bytes));
    };
    clear(layout.quants, layout.col_tiles * layout.quant_bytes);
    clear(layout.extra, layout.col_tiles * layout.extra_bytes);
    clear(layout.scales, layout.col_tiles * layout.scale_bytes);
    clear(layout.supers, supers * layout.super_bytes);
    with_block(type, [&](auto block, int elems) {
      repack_blocks<decltype(block)>(elems, layout, form, src, rows, cols, tile, out);
    });
  }
}

}  // namespace tessera::gpu
