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
// that one shift serves the four elements of word w. Of one word or of a vector of them. Its
// inverse is `gather_bits`.
template <typename Bits>
Bits spread_high_bits(Bits bits) {
  Bits out = bits & 0u;
  for (unsigned w = 0; w < 8; ++w) {
    const Bits four = bits >> 4 * w & 0xfu;
    out |= ((four | four << 7 | four << 14 | four << 21) & 0x01010101u) << w;
  }
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
      store_word(word, spread_high_bits(load_word(word)));
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

// Rows as they lie in the file, and how far ahead what is read soon lies: nothing at 0.
struct Rows {
  const std::byte* data;
  std::int64_t stride;
  std::int64_t ahead;
};

// Sixteen bytes.
template <typename Word>
using Vector __attribute__((vector_size(16))) = Word;

// The words of a and b in turn: of their first halves, of their second halves.
using Vector32 = Vector<std::uint32_t>;
using Vector16 = Vector<std::uint16_t>;
Vector32 first_halves(Vector32 a, Vector32 b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
Vector32 second_halves(Vector32 a, Vector32 b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
Vector16 first_halves(Vector16 a, Vector16 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
Vector16 second_halves(Vector16 a, Vector16 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// Transposes a square of words: as many rows as a vector has words.
template <typename Word>
void transpose(const std::byte* rows, std::int64_t stride, std::byte* to, std::int64_t to_stride) {
  constexpr int kCount = 16 / sizeof(Word), kHalf = kCount / 2;
  Vector<Word> v[kCount], next[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) std::memcpy(&v[i], rows + i * stride, sizeof(v[i]));
    // Each round moves one bit of a word's row to its column.
#pragma GCC unroll 3
  for (int moved = 1; moved < kCount; moved *= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < kHalf; ++i) {
      next[2 * i] = first_halves(v[i], v[i + kHalf]);
      next[2 * i + 1] = second_halves(v[i], v[i + kHalf]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) std::memcpy(to + i * to_stride, &v[i], sizeof(v[i]));
}

// `count` words that follow each other in each of the 16 rows, so many bytes from the rows' start,
// 64 bytes of a row at a time. There are no fewer than a vector has.
template <typename Word>
void transpose_run(const Rows& rows, std::int64_t from, std::int64_t count, std::byte* to) {
  constexpr int kCount = 16 / sizeof(Word), kRun = 64 / sizeof(Word);
  constexpr std::int64_t kStride = kGroupRows * sizeof(Word);
  for (std::int64_t begin = 0; begin < count; begin += kRun) {
    const std::int64_t end = std::min(count, begin + kRun);
    for (int lane = 0; lane < kGroupRows; lane += kCount) {
      const std::byte* const square = rows.data + lane * rows.stride + from;
      for (int i = 0; i < kCount && rows.ahead != 0; ++i)
        __builtin_prefetch(square + i * rows.stride + begin * sizeof(Word) + rows.ahead, 0, 3);
      for (std::int64_t i = begin; i < end; i += kCount) {
        const std::int64_t at = std::min(i, count - kCount);
        transpose<Word>(square + at * sizeof(Word), rows.stride,
                        to + at * kStride + lane * sizeof(Word), kStride);
      }
    }
  }
}

// A group without missing rows, in squares of words. False: its rows are too short for one.
bool pack_whole_group(const PackedLayout& layout, const Rows& rows, std::int64_t blocks,
                      Planes to) {
  if (layout.words == 0 && layout.tail_bytes == 2 && blocks >= 8) {
    transpose_run<std::uint16_t>(rows, 0, blocks, to.tails);
    return true;
  }
  if (layout.tail_bytes == 0 && layout.spread_word < 0 && blocks * layout.words >= 4) {
    transpose_run<std::uint32_t>(rows, 0, blocks * layout.words, to.lines);
    return true;
  }
  if (layout.words < 4) return false;
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::byte* const lines = to.lines + b * layout.words * kLineBytes;
    transpose_run<std::uint32_t>(rows, b * layout.bytes + layout.words_from, layout.words, lines);
    for (int at = 0; at < kLineBytes && layout.spread_word >= 0; at += 16) {
      Vector32 words;
      std::byte* const from = lines + layout.spread_word * kLineBytes + at;
      std::memcpy(&words, from, sizeof(words));
      words = spread_high_bits(words);
      std::memcpy(from, &words, sizeof(words));
    }
    const std::byte* const tail = rows.data + b * layout.bytes + layout.tail_from;
    std::byte* const tails = to.tails + b * kGroupRows * layout.tail_bytes;
    if (layout.tail_bytes == 2)
      copy_strided<2>(tail, rows.stride, tails, 2, kGroupRows);
    else if (layout.tail_bytes == 1)
      copy_strided<1>(tail, rows.stride, tails, 1, kGroupRows);
  }
  return true;
}

void pack_group(const MatrixSource& source, const PackedLayout& layout, std::int64_t group,
                bool last, std::byte* dst) {
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
    const Rows rows{.data = source.data + first * source.row_stride_bytes,
                    .stride = source.row_stride_bytes,
                    .ahead = last ? 0 : kGroupRows * source.row_stride_bytes};
    if (pack_whole_group(layout, rows, blocks, to)) return;
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

void pack_groups(const MatrixSource& source, GroupRange groups, std::byte* matrix) {
  CHECK(0 <= groups.begin && groups.begin <= groups.end && groups.end <= group_count(source.rows),
        "groups {}..{} of a matrix of {} rows", groups.begin, groups.end, source.rows);
  CHECK(reinterpret_cast<std::uintptr_t>(matrix) % kLineBytes == 0);
  const PackedLayout layout = packed_layout(source.type);
  const std::int64_t group_bytes = packed_group_bytes(source.type, source.cols);
  // Each group fetches the one behind it; nobody else does so for the first.
  const std::byte* const begin = source.data + groups.begin * kGroupRows * source.row_stride_bytes;
  const std::int64_t rows =
      std::min<std::int64_t>(kGroupRows, source.rows - groups.begin * kGroupRows);
  for (std::int64_t at = 0; at < rows * source.row_stride_bytes; at += kLineBytes)
    __builtin_prefetch(begin + at, 0, 2);
  for (std::int64_t group = groups.begin; group < groups.end; ++group) {
    pack_group(source, layout, group, group + 1 == groups.end, matrix + group * group_bytes);
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
