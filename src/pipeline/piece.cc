#include "pipeline/piece.h"

#include <algorithm>
#include <cstdlib>

#include "base/checked.h"

namespace tessera {
namespace {

// Where the rows may be cut: the place nearest to `wanted` in (begin, limit]. There is one within
// kCutRows + 1 rows.
int cut_near(const BatchView& batch, int begin, int wanted, int limit) {
  int best = begin;
  const auto consider = [&](int cut) {
    if (cut <= begin || cut > limit) return;
    if (best == begin || std::abs(cut - wanted) < std::abs(best - wanted)) best = cut;
  };
  for (const SequenceRows& sequence : batch.sequences) {
    const int end = sequence.first_row + sequence.n_rows;
    if (end <= begin) continue;
    if (sequence.first_row >= limit) break;
    // A single row is computed by another form of the delta net than a row of a chunk: none is left
    // over.
    for (int at = sequence.first_row + kCutRows; at + 1 < end; at += kCutRows) consider(at);
    consider(end);
  }
  return best;
}

}  // namespace

void cut_batch(const BatchView& batch, int max_rows, std::vector<int>& ends) {
  ends.clear();
  const int rows = batch.rows();
  for (int begin = 0; begin < rows; begin = ends.back()) {
    const int left = rows - begin;
    const int size = ceil_div(left, ceil_div(left, max_rows));
    const int limit = begin + std::max(max_rows, kCutRows + 1);
    ends.push_back(size == left ? rows : cut_near(batch, begin, begin + size, limit));
  }
}

void Piece::allocate(int max_rows, int n_embd) {
  n_embd_ = n_embd;
  hidden_.resize(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(n_embd));
}

void Piece::take(const BatchView& batch, int begin, int end) {
  tokens_.assign(batch.tokens.begin() + begin, batch.tokens.begin() + end);
  logit_rows_.clear();
  for (const std::int32_t row : batch.logit_rows)
    if (row >= begin && row < end) logit_rows_.push_back(row - begin);
  sequences_.clear();
  for (const SequenceRows& sequence : batch.sequences) {
    const int first = std::max(begin, sequence.first_row);
    const int last = std::min(end, sequence.first_row + sequence.n_rows);
    if (first >= last) continue;
    SequenceRows& part = sequences_.emplace_back(sequence);
    part.first_row = first - begin;
    part.n_rows = last - first;
    part.first_position += first - sequence.first_row;
  }
  take_tables();
  view_ = {.tokens = tokens_, .sequences = sequences_, .logit_rows = logit_rows_};
  error_.reset();
}

void Piece::refer(const BatchView& batch) {
  view_ = batch;
  error_.reset();
}

// Replaces the page tables of sequences_ by copies.
void Piece::take_tables() {
  std::size_t pages = 0, tables = 0;
  for (const SequenceRows& sequence : sequences_) {
    tables += sequence.pages.size();
    for (const std::span<const std::int32_t> table : sequence.pages) pages += table.size();
  }
  // Sized before any span points into them.
  pages_.resize(pages);
  tables_.resize(tables);
  std::size_t page = 0, table = 0;
  for (SequenceRows& sequence : sequences_) {
    const std::size_t first_table = table;
    for (const std::span<const std::int32_t> from : sequence.pages) {
      std::copy(from.begin(), from.end(), pages_.begin() + static_cast<std::ptrdiff_t>(page));
      tables_[table++] = {pages_.data() + page, from.size()};
      page += from.size();
    }
    sequence.pages = {tables_.data() + first_table, table - first_table};
  }
}

}  // namespace tessera
