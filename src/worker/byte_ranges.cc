#include "worker/byte_ranges.h"

#include <algorithm>

namespace tessera::worker {
namespace {

constexpr std::uint64_t kPage = 4096;

}  // namespace

void ByteRanges::add(ByteRange range) {
  if (range.begin >= range.end) return;
  // The first that ends at or behind the new one's begin.
  auto at = ranges_.upper_bound(range.begin);
  if (at != ranges_.begin() && std::prev(at)->second >= range.begin) --at;
  while (at != ranges_.end() && at->first <= range.end) {
    range.begin = std::min(range.begin, at->first);
    range.end = std::max(range.end, at->second);
    at = ranges_.erase(at);
  }
  ranges_.emplace_hint(at, range.begin, range.end);
}

void ByteRanges::add(const ByteRanges& other) {
  for (const auto& [begin, end] : other.ranges_) add({begin, end});
}

std::uint64_t ByteRanges::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [begin, end] : ranges_) sum += end - begin;
  return sum;
}

std::uint64_t ByteRanges::page_bytes() const {
  std::uint64_t sum = 0, next = 0;  // pages before `next` are counted
  for (const auto& [begin, end] : ranges_) {
    const std::uint64_t first = std::max(next, begin / kPage);
    next = (end + kPage - 1) / kPage;
    sum += next - std::min(first, next);
  }
  return sum * kPage;
}

std::vector<ByteRange> ByteRanges::all() const {
  std::vector<ByteRange> list;
  for (const auto& [begin, end] : ranges_) list.push_back({begin, end});
  return list;
}

ByteRanges ByteRanges::without(const ByteRanges& other) const {
  ByteRanges rest;
  for (const auto& [begin, end] : ranges_) {
    std::uint64_t from = begin;
    auto cut = other.ranges_.upper_bound(begin);
    if (cut != other.ranges_.begin()) --cut;
    for (; cut != other.ranges_.end() && cut->first < end; ++cut) {
      if (cut->second <= from) continue;
      rest.add({from, std::max(from, cut->first)});
      from = cut->second;
    }
    rest.add({from, std::max(from, end)});
  }
  return rest;
}

std::uint64_t bytes_of(const FileRanges& files) {
  std::uint64_t sum = 0;
  for (const ByteRanges& file : files) sum += file.bytes();
  return sum;
}

std::uint64_t page_bytes_of(const FileRanges& files) {
  std::uint64_t sum = 0;
  for (const ByteRanges& file : files) sum += file.page_bytes();
  return sum;
}

}  // namespace tessera::worker
