// The loops of the matrix product, over the formats of matmul_formats.h. Included by the same three
// files, and like it local to each.
//
// For one output element the operations are, in this order, whatever the loop:
//   per 32 elements   sum = integer dot product, from the offset times minus the activations' sum
//                     acc = fma(float(sum) * weight scale, activation scale, acc)
//                     acc = fma(bias, scaled sum, acc)                      if the format has one
//   per float weight  acc = fma(w, x, acc)
// with the two halves of 32 elements joined before the activation scale where they have scales of
// their own. Tiling may choose only which elements are computed together.
#pragma once

#include "device/cpu/matmul_blocks.h"
#include "device/cpu/quantize_loops.h"

namespace tessera::cpu {
namespace {

// How far behind a panel that is computed the weights are fetched, in bytes.
inline constexpr std::int64_t kPrefetchPanel = 2048;

template <class S>
TESSERA_INLINE void store_group(const MatmulTile& tile, std::int64_t group, int row,
                                typename S::F acc) {
  float* const to = tile.out + row * tile.out_stride + group * 16;
  const std::int64_t present = tile.out_rows - group * 16;
  if (present >= 16) {
    S::store(to, acc);
    return;
  }
  alignas(64) float lanes[16];
  S::store(lanes, acc);
  for (std::int64_t i = 0; i < present; ++i) to[i] = lanes[i];
}

// What of a format matters once its weights are unpacked, so that formats can share code.
template <int kHalvesOf, int kOffsetOf, bool kBiasOf, int kMaxOf>
struct Shape {
  static constexpr int kHalves = kHalvesOf, kOffsetLog2 = kOffsetOf, kMax = kMaxOf;
  static constexpr bool kBias = kBiasOf;
};
template <class S, class Format>
using ShapeOf = Shape<Format::kHalves, Format::kOffsetLog2, Format::kBias,
                      S::kWideUnsigned ? 255 : Format::kMax>;

// The weights and scales of 32 elements, unpacked.
template <class S, class Shape>
struct Unpacked {
  typename S::I w[8];
  typename S::F scale[Shape::kHalves], bias[Shape::kHalves];
};

// Adds the products with one record of each of kRows rows, whose instructions are interleaved: a
// row alone is one long chain.
template <class S, class Shape, int kRows>
TESSERA_INLINE void add_records(const Unpacked<S, Shape>& u, const ActivationRecord* const* x,
                                typename S::F* acc) {
  constexpr int kMax = Shape::kMax, kOffset = Shape::kOffsetLog2;
  constexpr int kHalves = Shape::kHalves, kWords = 8 / kHalves;
  typename S::F sum[kRows];
  unroll<kHalves>([&](auto half) __attribute__((always_inline)) {
    typename S::I dots[kRows];
    const std::int8_t* q[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      dots[r] = S::zero();
      if constexpr (kOffset >= 0) {
        const std::int32_t* const minus = kHalves == 1 ? &x[r]->minus_sum : x[r]->minus_half;
        dots[r] = S::template shl<kOffset>(S::splat(minus + half.value));
      }
      q[r] = x[r]->q + half.value * 16;
    }
    S::template dot<kWords, kMax, kRows>(u.w + half.value * kWords, q, dots);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename S::F value = S::to_float(dots[r]);
      if constexpr (half.value == 0) {
        sum[r] = S::mul(value, u.scale[0]);
      } else {
        sum[r] = S::fma(value, u.scale[1], sum[r]);
      }
    }
  });
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    acc[r] = S::fma(sum[r], S::splat(&x[r]->scale), acc[r]);
    if constexpr (Shape::kBias && kHalves == 1) {
      acc[r] = S::fma(u.bias[0], S::splat(&x[r]->scaled_sum), acc[r]);
    } else if constexpr (Shape::kBias) {
      acc[r] = S::fma(u.bias[0], S::splat(&x[r]->scaled_half[0]), acc[r]);
      acc[r] = S::fma(u.bias[1], S::splat(&x[r]->scaled_half[1]), acc[r]);
    }
  }
}

// The same for any small number of rows.
template <class S, class Shape, int kRows>
TESSERA_INLINE void add_all_records(const Unpacked<S, Shape>& u, const ActivationRecord* const* x,
                                    typename S::F* acc) {
  constexpr int kNow = kRows < S::kInterleavedRows ? kRows : S::kInterleavedRows;
  add_records<S, Shape, kNow>(u, x, acc);
  if constexpr (kRows > kNow) add_all_records<S, Shape, kRows - kNow>(u, x + kNow, acc + kNow);
}

// Rows that keep their sums in registers: the memory-bound case.
template <class S, class Format, class Blocks, int kRows>
void few_rows(const MatmulTile& tile) {
  using F = typename S::F;
  using Shape = ShapeOf<S, Format>;
  for (std::int64_t group = 0; group < tile.groups; ++group) {
    Blocks blocks(tile, group);
    const ActivationRecord* x[kRows];
    F acc[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      x[r] = tile.records + tile.row_ids[r];
      acc[r] = S::zero_float();
    }
    for (std::int64_t b = 0; b < tile.blocks; ++b) {
      blocks.load();
      Format format;
      format.begin(blocks.lines(), blocks.tail());
      unroll<Format::kSubs>([&](auto sub) __attribute__((always_inline)) {
        blocks.template fetch<sub.value, Format::kSubs>();
        Unpacked<S, Shape> u;
        format.template weights<sub.value>(blocks.lines(), u.w);
        format.template scales<sub.value>(u.scale, u.bias);
        add_all_records<S, Shape, kRows>(u, x, acc);
        TESSERA_UNROLL
        for (int r = 0; r < kRows; ++r) x[r] += tile.record_step;
      });
      blocks.next();
    }
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) store_group<S>(tile, group, r, acc[r]);
  }
}

// 256 elements of a group, unpacked into the first-level cache, where all rows of a tile meet them.
inline constexpr int kPanelSubs = 8;
template <class S, class Shape>
struct Panel {
  Unpacked<S, Shape> sub[kPanelSubs];
};

// What a panel meets: records from the panel's first column on, and the sums so far. Meanwhile the
// weights of a later panel are fetched, `fetch_lines` with each run of elements: all at once would
// keep the activations out.
struct PanelRows {
  const ActivationRecord* x;
  std::int64_t step;
  const std::int32_t* row_ids;
  float (*sums)[16];
  const std::byte* fetch;
  const std::byte* fetch_end;
  int fetch_lines;
};

// Adds `subs` runs of 32 elements to kRows sums.
template <class S, class Shape, int kRows>
TESSERA_INLINE void add_panel(const Panel<S, Shape>& panel, int subs, const PanelRows& rows) {
  const ActivationRecord* x = rows.x;
  const std::byte* fetch = rows.fetch;
  typename S::F acc[kRows];
  std::int64_t row[kRows];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    acc[r] = S::load_float(rows.sums[r]);
    row[r] = rows.row_ids[r];
  }
  for (int sub = 0; sub < subs; ++sub) {
    const Unpacked<S, Shape> u = panel.sub[sub];
    const ActivationRecord* records[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) records[r] = x + row[r];
    add_all_records<S, Shape, kRows>(u, records, acc);
    x += rows.step;
    for (int i = 0; i < rows.fetch_lines && fetch < rows.fetch_end; ++i, fetch += kLine) {
      __builtin_prefetch(fetch, 0, 3);
    }
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) S::store(rows.sums[r], acc[r]);
}

template <class S, class Shape, int kRows>
TESSERA_INLINE void add_panel_of(int n, const Panel<S, Shape>& panel, int subs,
                                 const PanelRows& rows) {
  if constexpr (kRows > 0 && 2 * kRows >= S::kPanelRows) {
    if (n == kRows) {
      add_panel<S, Shape, kRows>(panel, subs, rows);
    } else {
      add_panel_of<S, Shape, kRows - 1>(n, panel, subs, rows);
    }
  }
}

// All rows, in as few passes as registers allow. Passes are about equally large, so that none is
// under half of the most: n > kFewRows, and a single pass may be of any such n.
template <class S, class Shape>
void add_panel_rows(int n, const Panel<S, Shape>& panel, int subs, const PanelRows& rows) {
  static_assert(2 * (S::kFewRows + 1) >= S::kPanelRows);
  const int passes = (n + S::kPanelRows - 1) / S::kPanelRows;
  const int least = n / passes, larger = n % passes;
  PanelRows part = rows;
  const auto lines = static_cast<int>((rows.fetch_end - rows.fetch) / kLine);
  part.fetch_lines = (lines + kPanelSubs * passes - 1) / (kPanelSubs * passes);
  for (int pass = 0; pass < passes; ++pass) {
    const int now = least + (pass < larger ? 1 : 0);
    add_panel_of<S, Shape, S::kPanelRows>(now, panel, subs, part);
    part.row_ids += now;
    part.sums += now;
    part.fetch += kPanelSubs * part.fetch_lines * kLine;
  }
}

template <class S, class Format, class Blocks>
void many_rows(const MatmulTile& tile) {
  using Shape = ShapeOf<S, Format>;
  constexpr int kBlocks = kPanelSubs / Format::kSubs;  // of a panel
  alignas(64) float sums[kMaxTileRows][16];
  Panel<S, Shape> panel;
  for (std::int64_t group = 0; group < tile.groups; ++group) {
    Blocks blocks(tile, group);
    PanelRows rows{tile.records, tile.record_step, tile.row_ids, sums, nullptr, nullptr, 0};
    for (int r = 0; r < tile.n_rows; ++r) S::store(sums[r], S::zero_float());
    for (std::int64_t b = 0; b < tile.blocks; b += kBlocks) {
      int subs = 0;
      for (std::int64_t end = b + kBlocks, i = b; i < end && i < tile.blocks; ++i) {
        blocks.load();
        Format format;
        format.begin(blocks.lines(), blocks.tail());
        unroll<Format::kSubs>([&](auto sub) __attribute__((always_inline)) {
          Unpacked<S, Shape>& u = panel.sub[subs + sub.value];
          format.template weights<sub.value>(blocks.lines(), u.w);
          format.template scales<sub.value>(u.scale, u.bias);
          if constexpr (!Blocks::kInOrder) blocks.template fetch<sub.value, Format::kSubs>();
        });
        subs += Format::kSubs;
        blocks.next();
      }
      if constexpr (Blocks::kInOrder) {
        rows.fetch = blocks.lines() + kPrefetchPanel;
        rows.fetch_end = rows.fetch + kBlocks * Format::kWords * kLine;
      }
      add_panel_rows<S, Shape>(tile.n_rows, panel, subs, rows);
      rows.x += subs * rows.step;
    }
    for (int r = 0; r < tile.n_rows; ++r) store_group<S>(tile, group, r, S::load_float(sums[r]));
  }
}

// few_rows for up to S::kFewRows rows, which is worth code of its own.
template <class S, class Format, class Blocks, int kRows = 1>
void quantised_tile(const MatmulTile& tile) {
  if constexpr (kRows > S::kFewRows) {
    many_rows<S, Format, Blocks>(tile);
  } else if (tile.n_rows == kRows) {
    few_rows<S, Format, Blocks, kRows>(tile);
  } else {
    quantised_tile<S, Format, Blocks, kRows + 1>(tile);
  }
}

// Float weights: [column][16 rows]. ------------------------------------------------------------

struct ElementF32 {
  static constexpr int kBytes = 4;
  template <class S>
  static TESSERA_INLINE typename S::F load(const std::byte* from) {
    return S::load_float(from);
  }
};
struct ElementF16 {
  static constexpr int kBytes = 2;
  template <class S>
  static TESSERA_INLINE typename S::F load(const std::byte* from) {
    return S::half_at(from);
  }
};
struct ElementBF16 {
  static constexpr int kBytes = 2;
  template <class S>
  static TESSERA_INLINE typename S::F load(const std::byte* from) {
    return S::bfloat_at(from);
  }
};

template <class S, class Element, int kRows, int kGroups>
void dense_block(const MatmulTile& tile, std::int64_t group, int row) {
  using F = typename S::F;
  constexpr std::int64_t kColumnBytes = 16 * Element::kBytes;
  const float* x[kRows];
  F acc[kGroups][kRows];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = tile.x + tile.row_ids[row + r] * tile.x_stride;
  TESSERA_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) acc[g][r] = S::zero_float();
  }
  const std::byte* weights = tile.weights + group * tile.group_bytes;
  for (std::int64_t k = 0; k < tile.cols; ++k) {
    F w[kGroups];
    TESSERA_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      w[g] = Element::template load<S>(weights + g * tile.group_bytes);
      __builtin_prefetch(weights + g * tile.group_bytes + kFetchBytes, 0, 3);
    }
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F xk = S::splat(x[r] + k);
      TESSERA_UNROLL
      for (int g = 0; g < kGroups; ++g) acc[g][r] = S::fma(w[g], xk, acc[g][r]);
    }
    weights += kColumnBytes;
  }
  TESSERA_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) store_group<S>(tile, group + g, row + r, acc[g][r]);
  }
}

// All rows of kGroups groups, kRows at a time and then what is left.
template <class S, class Element, int kRows, int kGroups>
void dense_groups(const MatmulTile& tile, std::int64_t group, int row) {
  for (; tile.n_rows - row >= kRows; row += kRows) {
    dense_block<S, Element, kRows, kGroups>(tile, group, row);
  }
  if constexpr (kRows > 1) {
    if (row < tile.n_rows) dense_groups<S, Element, kRows - 1, kGroups>(tile, group, row);
  }
}

template <class S, class Element>
void dense_tile(const MatmulTile& tile) {
  std::int64_t group = 0;
  if (tile.n_rows == 1) {
    for (; tile.groups - group >= 4; group += 4) dense_block<S, Element, 1, 4>(tile, group, 0);
  }
  for (; tile.groups - group >= 2; group += 2) {
    dense_groups<S, Element, S::kDenseRows, 2>(tile, group, 0);
  }
  if (group < tile.groups) dense_groups<S, Element, S::kDenseRows, 1>(tile, group, 0);
}

template <class S, class Format>
constexpr void set_quantised(MatmulKernels& k, int type) {
  k.tile[type] = quantised_tile<S, Format, PackedBlocks<S, Format>>;
  k.file_tile[type] = quantised_tile<S, Format, FileBlocks<S, Format>>;
}

template <class S>
constexpr MatmulKernels make_kernels(Isa isa) {
  MatmulKernels k{};
  k.isa = isa;
  k.quantize = quantize_row<S>;
  k.tile[0] = dense_tile<S, ElementF32>;
  k.tile[1] = dense_tile<S, ElementF16>;
  set_quantised<S, FormatQ4_0<S>>(k, 2);
  set_quantised<S, FormatQ4_1<S>>(k, 3);
  set_quantised<S, FormatQ5_0<S>>(k, 6);
  set_quantised<S, FormatQ5_1<S>>(k, 7);
  set_quantised<S, FormatQ8_0<S>>(k, 8);
  set_quantised<S, FormatQ2_K<S>>(k, 10);
  set_quantised<S, FormatQ3_K<S>>(k, 11);
  set_quantised<S, FormatQ4_K<S>>(k, 12);
  set_quantised<S, FormatQ5_K<S>>(k, 13);
  set_quantised<S, FormatQ6_K<S>>(k, 14);
  set_quantised<S, FormatIQ4_NL<S>>(k, 20);
  set_quantised<S, FormatIQ4_XS<S>>(k, 23);
  k.tile[30] = dense_tile<S, ElementBF16>;
  set_quantised<S, FormatMXFP4<S>>(k, 39);
  return k;
}

}  // namespace
}  // namespace tessera::cpu
