// ByteRanges: which bytes of a file are meant, as ranges that neither overlap nor touch.
//
//   ByteRanges have;
//   have.add({0, 100});
//   for (const ByteRange& gap : wanted.without(have)) ...
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tessera::worker {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // one past the last
  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

class ByteRanges {
 public:
  void add(ByteRange range);  // an empty one adds nothing
  void add(const ByteRanges& other);
  void clear() { ranges_.clear(); }

  bool empty() const { return ranges_.empty(); }
  std::uint64_t bytes() const;
  // Of the pages that they touch.
  std::uint64_t page_bytes() const;
  std::vector<ByteRange> all() const;  // in rising order
  ByteRanges without(const ByteRanges& other) const;
  bool operator==(const ByteRanges&) const = default;

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin to end
};

// Of each file of a model, in the order of its shards.
using FileRanges = std::vector<ByteRanges>;
std::uint64_t bytes_of(const FileRanges& files);
std::uint64_t page_bytes_of(const FileRanges& files);

}  // namespace tessera::worker
