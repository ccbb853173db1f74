// Where the product loops find a group's blocks: packed, or as rows of the file.
//
// Included like matmul_formats.h, whose formats read what is offered here: for the 16 rows' next
// block, `lines` as packed_matrix.h lays them out and a `tail`. Both kinds of blocks give the same
// bits. Rows of the file are transposed in registers, one block at a time, into lines that stay in
// the first-level cache: no packed copy is written and read back.
#pragma once

#include "device/cpu/matmul_formats.h"
#include "device/cpu/matmul_kernels.h"

namespace tessera::cpu {
namespace {

// How far ahead of use packed weights are fetched.
inline constexpr std::int64_t kFetchBytes = 4096;

template <class S>
struct PackedTail {
  const std::byte* data;
  TESSERA_INLINE typename S::F half() const { return S::half_at(data); }
  TESSERA_INLINE typename S::F exponent() const { return S::exponent(S::bytes_at(data)); }
};

template <class S, class Format>
class PackedBlocks {
 public:
  static constexpr bool kInOrder = true;  // of the memory
  TESSERA_INLINE PackedBlocks(const MatmulTile& tile, std::int64_t group)
      : lines_(tile.weights + group * tile.group_bytes), tail_(lines_ + tile.tail_offset) {}

  TESSERA_INLINE void load() {}
  TESSERA_INLINE const std::byte* lines() const { return lines_; }
  TESSERA_INLINE PackedTail<S> tail() const { return {tail_}; }
  TESSERA_INLINE void next() {
    lines_ += kBytes;
    tail_ += Format::kTail * 16;
  }
  // Fetches a part of what is read kFetchBytes later.
  template <int kPart, int kParts>
  TESSERA_INLINE void fetch() const {
    TESSERA_UNROLL
    for (int word = Format::kWords * kPart / kParts; word < Format::kWords * (kPart + 1) / kParts;
         ++word) {
      __builtin_prefetch(lines_ + kFetchBytes + word * kLine, 0, 3);
    }
  }

 private:
  static constexpr std::int64_t kBytes = Format::kWords * kLine;
  const std::byte* lines_;
  const std::byte* tail_;
};

// Four bytes of each row's block that begin, or end, with its tail.
template <class S, bool kBegin>
struct WordTail {
  typename S::I word;
  TESSERA_INLINE typename S::F half() const {
    if constexpr (kBegin) return S::half_low(word);
    return S::half_high(word);
  }
  TESSERA_INLINE typename S::F exponent() const {
    static_assert(kBegin);
    return S::exponent(S::template mask<0xff>(word));
  }
};

// Moves the bits of kMask kBy places up, and those that stood there down.
template <class S, int kBy, std::uint32_t kMask>
TESSERA_INLINE typename S::I swap_bits(typename S::I word) {
  const typename S::I up = S::template shl<kBy>(S::template mask<kMask>(word));
  const typename S::I down = S::template mask<kMask>(S::template shr<kBy>(word));
  return S::or_(S::template mask<~(kMask | kMask << kBy)>(word), S::or_(up, down));
}

// Bit 4w + b to bit 8b + w, as packing spreads the fifth bits of Q5_0 and Q5_1: the five digits of
// a bit's number turn by two places, in four exchanges of two digits.
template <class S>
TESSERA_INLINE typename S::I spread_bits(typename S::I word) {
  word = swap_bits<S, 3, 0x0a0a0a0au>(word);   // digits 0 and 2
  word = swap_bits<S, 6, 0x00cc00ccu>(word);   // digits 1 and 3
  word = swap_bits<S, 12, 0x0000f0f0u>(word);  // digits 2 and 4
  return swap_bits<S, 8, 0x0000ff00u>(word);   // digits 3 and 4
}

template <class S, class Format>
class FileBlocks {
 public:
  static constexpr bool kInOrder = false;
  TESSERA_INLINE FileBlocks(const MatmulTile& tile, std::int64_t group)
      : rows_(tile.weights + group * tile.group_bytes),
        stride_(tile.row_stride),
        present_(tile.out_rows - group * 16) {
    if (group == 0) {  // nobody else has fetched its first blocks
      for (int row = 0; row < 16; ++row) {
        const std::byte* const from = rows_ + row * stride_;
        for (int at = 0; at < kAhead * kBytes; at += kLine) __builtin_prefetch(from + at, 0, 3);
      }
    }
    const std::int64_t ahead = tile.blocks < kAhead ? tile.blocks : kAhead;
    fetch_ = rows_ + ahead * kBytes;
    left_ = tile.blocks - ahead;
    next_group_ = group + 1 < tile.groups ? rows_ + tile.group_bytes : rows_;
    if (left_ == 0) fetch_ = next_group_;
  }

  TESSERA_INLINE void load() {
    if (present_ < 16) complete();
    const std::byte* const rows = present_ < 16 ? copy_ : rows_;
    const std::int64_t stride = present_ < 16 ? kBytes : stride_;
    transpose_words<0>(rows + kWordsFrom, stride);
    if constexpr (Format::kSpreadWord >= 0) {
      std::byte* const spread = lines_ + Format::kSpreadWord * kLine;
      S::store_line(spread, spread_bits<S>(S::load(spread)));
    }
    if constexpr (Format::kTail > 0) {
      typename S::I words[4];
      S::template transpose<4>(rows + (kTailBegins ? 0 : kBytes - 16), stride, words);
      tail_ = words[kTailBegins ? 0 : 3];
    }
  }
  TESSERA_INLINE const std::byte* lines() const { return lines_; }
  TESSERA_INLINE WordTail<S, Format::kSubs == 1> tail() const { return {tail_}; }
  TESSERA_INLINE void next() {
    rows_ += kBytes;
    fetch_ += kBytes;
    if (--left_ == 0) fetch_ = next_group_;
  }
  // Fetches a part of the rows' blocks that are read kAhead blocks later: of this group, then of
  // the next one.
  template <int kPart, int kParts>
  TESSERA_INLINE void fetch() const {
    constexpr int kRows = 16 / kParts;
    TESSERA_UNROLL
    for (int row = kPart * kRows; row < (kPart + 1) * kRows; ++row) {
      TESSERA_UNROLL
      for (int at = 0; at < kBytes; at += kLine) {
        __builtin_prefetch(fetch_ + row * stride_ + at, 0, 3);
      }
    }
  }

 private:
  static constexpr int kBytes = 4 * Format::kWords + Format::kTail;
  static constexpr bool kTailBegins = Format::kSubs == 1;
  static constexpr int kWordsFrom = kTailBegins ? Format::kTail : 0;
  static_assert(Format::kWords >= 4);
  // How far ahead of use blocks are fetched: 256 bytes of each row, so that as little as with
  // packed weights is fetched by nobody at the start, and computed without fetching at the end.
  static constexpr int kAhead = (256 + kBytes - 1) / kBytes;

  // Words from kFirst on, in the largest squares that the instruction set has. What they leave ends
  // in a square of four that overlaps the one before it.
  template <int kFirst>
  TESSERA_INLINE void transpose_words(const std::byte* rows, std::int64_t stride) {
    constexpr int kLeft = Format::kWords - kFirst;
    if constexpr (kLeft > 0) {
      constexpr int kCount = kLeft >= S::kSquareWords ? S::kSquareWords : 4;
      constexpr int kAt = kLeft >= kCount ? kFirst : Format::kWords - kCount;
      typename S::I words[kCount];
      S::template transpose<kCount>(rows + 4 * kAt, stride, words);
      TESSERA_UNROLL
      for (int i = 0; i < kCount; ++i) S::store_line(lines_ + (kAt + i) * kLine, words[i]);
      transpose_words<kAt + kCount>(rows, stride);
    }
  }

  // The rows that the last group lacks are zero, as they are when packed.
  void complete() {
    for (int row = 0; row < 16; ++row) {
      if (row < present_) {
        __builtin_memcpy(copy_ + row * kBytes, rows_ + row * stride_, kBytes);
      } else {
        __builtin_memset(copy_ + row * kBytes, 0, kBytes);
      }
    }
  }

  const std::byte* rows_;  // this block of row 0
  std::int64_t stride_;
  std::int64_t present_;
  const std::byte* fetch_;       // the block of row 0 that is fetched now
  std::int64_t left_;            // blocks before what is fetched is the next group's
  const std::byte* next_group_;  // or this one again if it is the last
  typename S::I tail_;
  alignas(64) std::byte lines_[Format::kWords * kLine];
  std::byte copy_[16 * kBytes];
};

}  // namespace
}  // namespace tessera::cpu
