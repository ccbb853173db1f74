// TokenCounts: how often each token stands in a stretch of text. Entries are sorted by id.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "model/spec.h"

namespace tessera {

class TokenCounts {
 public:
  struct Entry {
    TokenId id;
    int count;  // > 0
  };

  void add(TokenId id) {
    const auto at = find(id);
    if (at != entries_.end() && at->id == id)
      ++at->count;
    else
      entries_.insert(at, {id, 1});
  }

  void remove(TokenId id) {
    const auto at = find(id);
    CHECK(at != entries_.end() && at->id == id, "token {} was never counted", id);
    if (--at->count == 0) entries_.erase(at);
  }

  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry>::iterator find(TokenId id) {
    return std::lower_bound(entries_.begin(), entries_.end(), id,
                            [](const Entry& entry, TokenId wanted) { return entry.id < wanted; });
  }

  std::vector<Entry> entries_;
};

}  // namespace tessera
