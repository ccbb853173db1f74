#include "pipeline/piece.h"

#include <algorithm>
#include <cstdlib>

#include "base/checked.h"

namespace tessera {
namespace {

// Where the rows may be cut: the place nearest to `wanted` after the first row of `reach` and not
// past its end. There is one within kCutRows + 1 rows.
int cut_near(const BatchView& batch, RowRange reach, int wanted) {
  int best = reach.begin;
  const auto consider = [&](int cut) {
    if (cut <= reach.begin || cut > reach.end) return;
    if (best == reach.begin || std::abs(cut - wanted) < std::abs(best - wanted)) best = cut;
  };
  for (const SequenceRows& sequence : batch.sequences) {
    const int end = sequence.first_row + sequence.n_rows;
    if (end <= reach.begin) continue;
    if (sequence.first_row >= reach.end) break;
    // A single row is computed by another form of the delta net than a row of a chunk: none is left
    // over.
    for (int at = sequence.first_row + kCutRows; at + 1 < end; at += kCutRows) consider(at);
    consider(end);
  }
  return best;
}

}  // namespace

void cut_batch(const BatchView& batch, int max_rows, std::vector<RowRange>& ranges) {
  ranges.clear();
  const int rows = batch.rows();
  for (int begin = 0; begin < rows; begin = ranges.back().end) {
    const int left = rows - begin;
    const int size = ceil_div(left, ceil_div(left, max_rows));
    const RowRange reach{begin, begin + std::max(max_rows, kCutRows + 1)};
    ranges.push_back({begin, size == left ? rows : cut_near(batch, reach, begin + size)});
  }
}

void Piece::allocate(const Size& size, int place) {
  n_embd_ = size.n_embd;
  place_ = place;
  hidden_.resize(static_cast<std::size_t>(size.max_rows) * static_cast<std::size_t>(size.n_embd));
}

void Piece::take(const BatchView& batch, RowRange rows) {
  tokens_.assign(batch.tokens.begin() + rows.begin, batch.tokens.begin() + rows.end);
  take_logit_rows(batch, rows);
  sequences_.clear();
  for (const SequenceRows& sequence : batch.sequences) {
    const int first = std::max(rows.begin, sequence.first_row);
    const int last = std::min(rows.end, sequence.first_row + sequence.n_rows);
    if (first >= last) continue;
    SequenceRows& part = sequences_.emplace_back(sequence);
    part.first_row = first - rows.begin;
    part.n_rows = last - first;
    part.first_position += first - sequence.first_row;
  }
  take_tables();
  view_ = {.tokens = tokens_,
           .sequences = sequences_,
           .logit_rows = logit_rows_,
           .choices = {choices_, logit_changes_}};
  error_.reset();
}

void Piece::take_logit_rows(const BatchView& batch, RowRange rows) {
  logit_rows_.clear();
  choices_.clear();
  logit_changes_.clear();
  std::size_t change = 0;
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const std::int32_t row = batch.logit_rows[i];
    const bool taken = row >= rows.begin && row < rows.end;
    if (taken) logit_rows_.push_back(row - rows.begin);
    if (batch.choices.empty()) continue;
    const auto n_changes = static_cast<std::size_t>(batch.choices.rows[i].n_changes);
    const auto changes = batch.choices.changes.subspan(change, n_changes);
    change += n_changes;
    if (!taken) continue;
    choices_.push_back(batch.choices.rows[i]);
    logit_changes_.insert(logit_changes_.end(), changes.begin(), changes.end());
  }
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
