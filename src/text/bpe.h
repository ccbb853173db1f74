// BpeMerger: joins the symbols of one word by merge rank, lowest rank first, leftmost first.
//
//   merger.begin_word();
//   for (...) merger.add(symbol, byte_offset);
//   merger.merge(table);
//   for (std::size_t i = 0; i < merger.size(); ++i) use(merger.symbol(i), merger.offset(i));
//
// Short words are scanned for their best pair again and again; long ones go through a queue per
// rank, which makes a word of n symbols cost O(n log n) in the worst case and about O(n) when
// merges come in text order. A word has at most kMaxSymbols symbols. The object is scratch memory
// of one thread and may be used for any number of words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "text/bpe_merges.h"

namespace tessera::text {

class BpeMerger {
 public:
  static constexpr std::size_t kMaxSymbols = std::size_t{1} << 30;

  void begin_word() {
    symbols_.clear();
    offsets_.clear();
  }
  void add(Symbol symbol, std::size_t offset) {
    symbols_.push_back(symbol);
    offsets_.push_back(static_cast<std::uint32_t>(offset));
  }
  void merge(const MergeTable& table);

  std::size_t size() const { return symbols_.size(); }
  Symbol symbol(std::size_t i) const { return symbols_[i]; }
  std::size_t offset(std::size_t i) const { return offsets_[i]; }  // of its first byte in the word

 private:
  // Positions that wait to be merged under one rank, handed out in ascending order. Those that
  // arrive in order, nearly all, cost O(1).
  struct Bucket {
    Rank rank = kNoRank;
    bool waiting = false;  // rank is in waiting_
    std::size_t next = 0;
    std::vector<std::uint32_t> in_order;
    std::vector<std::uint32_t> late;  // a min-heap

    bool empty() const { return next == in_order.size() && late.empty(); }
    void push(std::uint32_t position);
    std::uint32_t pop();
  };

  void merge_by_scan(const MergeTable& table);
  void merge_by_queue(const MergeTable& table);
  void link();
  void rate(const MergeTable& table, std::uint32_t position);
  void enqueue(Rank rank, std::uint32_t position);
  void join(const MergeTable& table, std::uint32_t position);
  void compact();

  std::vector<Symbol> symbols_;
  std::vector<std::uint32_t> offsets_;
  std::vector<Rank> ranks_;  // of (i, its right neighbour); kNoRank also for what was joined

  // For long words only.
  std::vector<std::uint32_t> left_, right_;    // neighbours
  std::vector<std::uint32_t> bucket_of_rank_;  // index into buckets_, kNoBucket if there is none
  std::vector<Bucket> buckets_;
  std::priority_queue<Rank, std::vector<Rank>, std::greater<Rank>> waiting_;
};

}  // namespace tessera::text
