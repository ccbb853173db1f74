#include "text/bpe.h"

#include <algorithm>

#include "base/check.h"

namespace tessera::text {
namespace {

// Up to here a scan over contiguous ranks beats the queue's bookkeeping.
constexpr std::size_t kScanLimit = 160;
constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
constexpr std::uint32_t kNoBucket = 0xFFFFFFFF;

}  // namespace

void BpeMerger::merge(const MergeTable& table) {
  CHECK(symbols_.size() <= kMaxSymbols);
  if (symbols_.size() < 2) return;
  ranks_.resize(symbols_.size());
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i)
    ranks_[i] = table.rank(symbols_[i], symbols_[i + 1]);
  ranks_.back() = kNoRank;
  if (symbols_.size() <= kScanLimit) {
    merge_by_scan(table);
  } else {
    merge_by_queue(table);
  }
}

void BpeMerger::merge_by_scan(const MergeTable& table) {
  const auto erase = [](auto& values, std::size_t i) {
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (;;) {
    const auto best = std::min_element(ranks_.begin(), ranks_.end());
    if (*best == kNoRank) return;
    const auto i = static_cast<std::size_t>(best - ranks_.begin());
    symbols_[i] = table.merged(*best);
    erase(symbols_, i + 1);
    erase(offsets_, i + 1);
    erase(ranks_, i + 1);
    ranks_[i] = i + 1 < symbols_.size() ? table.rank(symbols_[i], symbols_[i + 1]) : kNoRank;
    if (i > 0) ranks_[i - 1] = table.rank(symbols_[i - 1], symbols_[i]);
  }
}

void BpeMerger::Bucket::push(std::uint32_t position) {
  if (in_order.empty() || position >= in_order.back()) {
    in_order.push_back(position);
  } else {
    late.push_back(position);
    std::push_heap(late.begin(), late.end(), std::greater<>());
  }
}

std::uint32_t BpeMerger::Bucket::pop() {
  if (late.empty() || (next < in_order.size() && in_order[next] <= late.front())) {
    const std::uint32_t position = in_order[next++];
    if (next == in_order.size()) {
      in_order.clear();
      next = 0;
    }
    return position;
  }
  std::pop_heap(late.begin(), late.end(), std::greater<>());
  const std::uint32_t position = late.back();
  late.pop_back();
  return position;
}

void BpeMerger::link() {
  const std::size_t n = symbols_.size();
  left_.resize(n);
  right_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    left_[i] = static_cast<std::uint32_t>(i) - 1;  // kNowhere for the first
    right_[i] = static_cast<std::uint32_t>(i) + 1;
  }
  right_[n - 1] = kNowhere;
}

void BpeMerger::enqueue(Rank rank, std::uint32_t position) {
  std::uint32_t& index = bucket_of_rank_[rank];
  if (index == kNoBucket) {
    index = static_cast<std::uint32_t>(buckets_.size());
    buckets_.emplace_back().rank = rank;
  }
  Bucket& bucket = buckets_[index];
  if (!bucket.waiting) waiting_.push(rank);
  bucket.waiting = true;
  bucket.push(position);
}

void BpeMerger::rate(const MergeTable& table, std::uint32_t position) {
  const std::uint32_t right = right_[position];
  const Rank rank = right == kNowhere ? kNoRank : table.rank(symbols_[position], symbols_[right]);
  ranks_[position] = rank;
  if (rank != kNoRank) enqueue(rank, position);
}

void BpeMerger::join(const MergeTable& table, std::uint32_t position) {
  const std::uint32_t gone = right_[position];
  symbols_[position] = table.merged(ranks_[position]);
  ranks_[gone] = kNoRank;
  offsets_[gone] = kNowhere;
  right_[position] = right_[gone];
  if (right_[gone] != kNowhere) left_[right_[gone]] = position;
  rate(table, position);
  if (left_[position] != kNowhere) rate(table, left_[position]);
}

void BpeMerger::compact() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    if (offsets_[i] == kNowhere) continue;
    symbols_[kept] = symbols_[i];
    offsets_[kept++] = offsets_[i];
  }
  symbols_.resize(kept);
  offsets_.resize(kept);
}

void BpeMerger::merge_by_queue(const MergeTable& table) {
  if (bucket_of_rank_.size() < table.ranks()) bucket_of_rank_.resize(table.ranks(), kNoBucket);
  link();
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    if (ranks_[i] != kNoRank) enqueue(ranks_[i], static_cast<std::uint32_t>(i));
  }
  while (!waiting_.empty()) {
    // Merging may bring pairs of a lower rank, so the best rank is asked for anew each time.
    const Rank rank = waiting_.top();
    Bucket& bucket = buckets_[bucket_of_rank_[rank]];
    if (bucket.empty()) {
      waiting_.pop();
      bucket = Bucket{.rank = rank};
      continue;
    }
    const std::uint32_t position = bucket.pop();
    if (ranks_[position] == rank) join(table, position);  // else the pair is gone since
  }
  for (const Bucket& bucket : buckets_) bucket_of_rank_[bucket.rank] = kNoBucket;
  buckets_.clear();
  compact();
}

}  // namespace tessera::text
