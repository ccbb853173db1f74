#include "pipeline/piece.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

// A batch of sequences of so many rows.
struct Rows {
  explicit Rows(const std::vector<int>& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tables.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i) + 10});
      sequences.push_back({.first_row = static_cast<int>(tokens.size()),
                           .n_rows = counts[i],
                           .first_position = 1000 * static_cast<int>(i),
                           .slot = static_cast<int>(i)});
      for (int row = 0; row < counts[i]; ++row)
        tokens.push_back(static_cast<TokenId>(tokens.size()));
    }
    for (const auto& table : tables) views.push_back(table);
    for (std::size_t i = 0; i < counts.size(); ++i) sequences[i].pages = {&views[i], 1};
  }
  BatchView view() const {
    return {.tokens = tokens, .sequences = sequences, .logit_rows = logit_rows};
  }

  std::vector<TokenId> tokens;
  std::vector<SequenceRows> sequences;
  std::vector<std::int32_t> logit_rows;
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::span<const std::int32_t>> views;
};

std::vector<int> ends_of(const std::vector<int>& counts, int max_rows) {
  std::vector<RowRange> ranges;
  cut_batch(Rows(counts).view(), max_rows, ranges);
  std::vector<int> ends;
  for (const RowRange rows : ranges) ends.push_back(rows.end);
  return ends;
}

TEST(CutBatch, SmallBatchesStayWhole) {
  EXPECT_EQ(ends_of({1}, 128), std::vector<int>({1}));
  EXPECT_EQ(ends_of({128}, 128), std::vector<int>({128}));
  EXPECT_EQ(ends_of({1, 1, 100}, 128), std::vector<int>({102}));
  EXPECT_EQ(ends_of({}, 128), std::vector<int>());
}

TEST(CutBatch, LongPromptsAreCutAtMultiplesFromTheirFirstRow) {
  EXPECT_EQ(ends_of({256}, 128), std::vector<int>({128, 256}));
  EXPECT_EQ(ends_of({512}, 128), std::vector<int>({128, 256, 384, 512}));
  EXPECT_EQ(ends_of({3, 256}, 128), std::vector<int>({67, 131, 259}));
}

TEST(CutBatch, NoSequenceIsLeftWithOneRow) {
  EXPECT_EQ(ends_of({129}, 128), std::vector<int>({64, 129}));
  EXPECT_EQ(ends_of({65}, 64), std::vector<int>({65}));
  EXPECT_EQ(ends_of({130}, 65), std::vector<int>({64, 130 - 2, 130}));
}

TEST(CutBatch, HoldsItsPromisesForAnyBatch) {
  std::uint32_t random = 1;
  const auto next = [&](int n) {
    random = random * 1664525 + 1013904223;
    return static_cast<int>((random >> 8) % static_cast<std::uint32_t>(n));
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> counts;
    for (int i = next(6); i >= 0; --i) counts.push_back(1 + next(next(2) == 0 ? 3 : 300));
    const int max_rows = 1 + next(200);
    const Rows rows(counts);
    std::vector<RowRange> ranges, again;
    cut_batch(rows.view(), max_rows, ranges);
    cut_batch(rows.view(), max_rows, again);
    EXPECT_EQ(ranges, again);
    int end = 0;
    for (const RowRange range : ranges) {
      EXPECT_EQ(range.begin, end);
      EXPECT_GT(range.size(), 0);
      EXPECT_LE(range.size(), std::max(max_rows, kCutRows + 1));
      end = range.end;
      for (const SequenceRows& sequence : rows.sequences) {
        const int last = sequence.first_row + sequence.n_rows;
        if (end <= sequence.first_row || end >= last) continue;
        EXPECT_EQ((end - sequence.first_row) % kCutRows, 0);
        EXPECT_GT(last - end, 1);
      }
    }
    EXPECT_EQ(end, rows.view().rows());
  }
}

TEST(Piece, IsABatchOfItsRows) {
  Rows rows({2, 150, 1});
  rows.logit_rows = {1, 65, 151, 152};
  Piece piece;
  piece.allocate({.max_rows = 128, .n_embd = 8});
  piece.take(rows.view(), {66, 153});
  const BatchView view = piece.view();
  EXPECT_EQ(view.rows(), 87);
  EXPECT_EQ(view.tokens.front(), 66);
  ASSERT_EQ(view.sequences.size(), 2u);
  EXPECT_EQ(view.sequences[0].first_row, 0);
  EXPECT_EQ(view.sequences[0].n_rows, 86);
  EXPECT_EQ(view.sequences[0].first_position, 1000 + 64);
  EXPECT_EQ(view.sequences[0].slot, 1);
  EXPECT_EQ(view.sequences[1].first_row, 86);
  EXPECT_EQ(view.sequences[1].first_position, 2000);
  EXPECT_EQ(std::vector<std::int32_t>(view.logit_rows.begin(), view.logit_rows.end()),
            (std::vector<std::int32_t>{85, 86}));
  EXPECT_EQ(piece.hidden().size(), 87u * 8);

  // It keeps what it took.
  for (auto& table : rows.tables) table.assign(2, -1);
  rows.tokens.assign(rows.tokens.size(), 0);
  EXPECT_EQ(view.tokens.back(), 152);
  ASSERT_EQ(view.sequences[0].pages.size(), 1u);
  EXPECT_EQ(view.sequences[0].pages[0][1], 11);
  EXPECT_EQ(view.sequences[1].pages[0][0], 2);

  piece.take(rows.view(), {0, 2});
  EXPECT_EQ(piece.view().sequences.size(), 1u);
  EXPECT_EQ(piece.view().logit_rows.size(), 1u);
}

}  // namespace
}  // namespace tessera
