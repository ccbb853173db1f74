#include "device/cpu/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kLineBytes = 64;
constexpr int kMaxBlockBytes = 256;

// The 32 high bits of Q5_0 and Q5_1: element 4w + b moves from bit 4w + b to bit w of byte b, so
// that one shift serves the four elements of word w. Its inverse is `gather_bits`.
std::uint32_t spread_bits(std::uint32_t bits) {
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= ((bits >> i) & 1u) << (8 * (i % 4) + i / 4);
  return out;
}
std::uint32_t gather_bits(std::uint32_t bits) {
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= ((bits >> (8 * (i % 4) + i / 4)) & 1u) << i;
  return out;
}

std::uint32_t load_word(const std::byte* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
void store_word(std::byte* to, std::uint32_t word) {
  std::memcpy(to, &word, sizeof(word));
}

// Copies `count` items of kBytes, one every from_stride bytes, to one every to_stride bytes.
template <int kBytes>
void copy_strided(const std::byte* from, std::int64_t from_stride, std::byte* to,
                  std::int64_t to_stride, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
  }
}

struct Planes {
  std::byte* lines;
  std::byte* tails;
};

// One row's share of blocks [begin, end).
void pack_row(const PackedLayout& layout, const std::byte* row, std::int64_t begin,
              std::int64_t end, int lane, Planes to) {
  const std::int64_t line_block = layout.words * kLineBytes;
  for (std::int64_t b = begin; b < end && layout.words > 0; ++b) {
    std::byte* const line = to.lines + b * line_block + 4 * lane;
    copy_strided<4>(row + b * layout.bytes + layout.words_from, 4, line, kLineBytes, layout.words);
    if (layout.spread_word >= 0) {
      std::byte* const word = line + layout.spread_word * kLineBytes;
      store_word(word, spread_bits(load_word(word)));
    }
  }
  const std::byte* const from = row + begin * layout.bytes + layout.tail_from;
  std::byte* const tail =
      to.tails + begin * kGroupRows * layout.tail_bytes + lane * layout.tail_bytes;
  if (layout.tail_bytes == 2) {
    copy_strided<2>(from, layout.bytes, tail, 2 * kGroupRows, end - begin);
  } else if (layout.tail_bytes == 1) {
    copy_strided<1>(from, layout.bytes, tail, kGroupRows, end - begin);
  }
}

void pack_group(const MatrixSource& source, const PackedLayout& layout, std::int64_t group,
                std::byte* dst) {
  const std::int64_t blocks = source.cols / layout.elems;
  const std::int64_t group_bytes = packed_group_bytes(source.type, source.cols);
  const Planes to{dst, dst + blocks * layout.words * kLineBytes};
  const std::int64_t first = group * kGroupRows;
  const int present = static_cast<int>(std::min<std::int64_t>(kGroupRows, source.rows - first));
  if (present < kGroupRows) {
    std::memset(dst, 0, static_cast<std::size_t>(group_bytes));
  } else {
    std::byte* const tails_end = to.tails + blocks * kGroupRows * layout.tail_bytes;
    std::memset(tails_end, 0, static_cast<std::size_t>(dst + group_bytes - tails_end));
  }
  // About 4 KiB of lines at a time, so that the 16 passes over them stay in the first-level cache.
  const std::int64_t step = std::max(1, 64 / std::max(1, layout.words));
  for (std::int64_t begin = 0; begin < blocks; begin += step) {
    const std::int64_t end = std::min(blocks, begin + step);
    for (int lane = 0; lane < present; ++lane) {
      const std::byte* const row = source.data + (first + lane) * source.row_stride_bytes;
      pack_row(layout, row, begin, end, lane, to);
    }
  }
}

}  // namespace

PackedLayout packed_layout(BlockType type) {
  const BlockFormat& format = block_format(type);
  PackedLayout layout;
  layout.elems = format.elems;
  layout.bytes = format.bytes;
  layout.words = format.bytes / 4;
  layout.tail_bytes = format.bytes % 4;
  // Where the scale leads the block, the words follow it; else the scale trails and is the tail.
  const bool scale_leads = format.elems == 32;
  layout.words_from = scale_leads ? layout.tail_bytes : 0;
  layout.tail_from = scale_leads ? 0 : 4 * layout.words;
  if (type == BlockType::Q5_0) layout.spread_word = 0;
  if (type == BlockType::Q5_1) layout.spread_word = 1;
  return layout;
}

std::int64_t packed_group_bytes(BlockType type, std::int64_t cols) {
  const PackedLayout layout = packed_layout(type);
  CHECK(cols >= 1 && cols % layout.elems == 0, "{} columns of {}", cols, block_type_name(type));
  return round_up(cols / layout.elems * layout.bytes * kGroupRows, kLineBytes);
}

std::int64_t packed_bytes(BlockType type, std::int64_t rows, std::int64_t cols) {
  CHECK(rows >= 1, "{} rows", rows);
  return group_count(rows) * packed_group_bytes(type, cols);
}

void pack_groups(const MatrixSource& source, std::int64_t group_begin, std::int64_t group_end,
                 std::byte* matrix) {
  CHECK(0 <= group_begin && group_begin <= group_end && group_end <= group_count(source.rows),
        "groups {}..{} of a matrix of {} rows", group_begin, group_end, source.rows);
  CHECK(reinterpret_cast<std::uintptr_t>(matrix) % kLineBytes == 0);
  const PackedLayout layout = packed_layout(source.type);
  const std::int64_t group_bytes = packed_group_bytes(source.type, source.cols);
  for (std::int64_t group = group_begin; group < group_end; ++group) {
    pack_group(source, layout, group, matrix + group * group_bytes);
  }
}

void dequantize_packed_row(const PackedMatrix& matrix, std::int64_t row, float* dst) {
  CHECK(0 <= row && row < matrix.rows(), "row {} of {}", row, matrix.rows());
  const PackedLayout layout = packed_layout(matrix.type());
  const std::int64_t blocks = matrix.cols() / layout.elems;
  const std::int64_t lane = row % kGroupRows;
  const std::byte* const group = matrix.data() + row / kGroupRows * matrix.group_bytes();
  const std::byte* const tails = group + blocks * layout.words * kLineBytes;
  std::array<std::byte, kMaxBlockBytes> block;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::byte* const line = group + b * layout.words * kLineBytes + 4 * lane;
    std::byte* const words = block.data() + layout.words_from;
    copy_strided<4>(line, kLineBytes, words, 4, layout.words);
    if (layout.spread_word >= 0) {
      std::byte* const word = words + 4 * layout.spread_word;
      store_word(word, gather_bits(load_word(word)));
    }
    std::memcpy(block.data() + layout.tail_from,
                tails + (b * kGroupRows + lane) * layout.tail_bytes,
                static_cast<std::size_t>(layout.tail_bytes));
    dequantize_row(matrix.type(), block.data(), layout.elems, dst + b * layout.elems);
  }
}

}  // namespace tessera::cpu
