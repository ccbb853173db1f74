#include "worker/state_changes.h"

#include <algorithm>

namespace tessera::worker {
namespace {

using Kind = WireStateChange::Kind;

bool is_of_page(const WireStateChange& change) {
  return change.kind == Kind::copy_page;
}

// Of two changes, whether both are of slots, or of pages of one group.
bool same_kind_of_place(const WireStateChange& a, const WireStateChange& b) {
  return is_of_page(a) == is_of_page(b) && (!is_of_page(a) || a.kv_group == b.kv_group);
}

}  // namespace

void drop_overwritten(std::vector<WireStateChange>& changes) {
  // From the back, so that a copy that is dropped keeps nothing alive.
  auto kept = changes.end();
  for (auto at = changes.end(); at != changes.begin();) {
    const WireStateChange change = *--at;
    const auto next = std::find_if(kept, changes.end(), [&](const WireStateChange& later) {
      const bool reads = later.kind != Kind::reset_slot && later.from == change.to;
      return same_kind_of_place(change, later) && (reads || later.to == change.to);
    });
    const bool read =
        next != changes.end() && next->kind != Kind::reset_slot && next->from == change.to;
    if (next == changes.end() || read) *--kept = change;
  }
  changes.erase(changes.begin(), kept);
}

}  // namespace tessera::worker
