// PageTables: the page tables of a worker's sequence slots, and which of their entries changed.
//
// Page tables live on both sides of a connection and only changes travel: the client keeps what the
// worker was told (changes_for), the worker what it heard (apply, tables, check_visible).
//
//   client:  tables.changes_for(sequence, changes);
//            tables.apply(changes);                       // once they are sent
//   worker:  tables.apply(changes);
//            TESSERA_TRY(tables.check_visible(windows, kv_pages, sequence));
//            rows.pages = tables.of(slot);
//
// Both sides begin with no pages at all. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/batch.h"
#include "worker/jobs.h"

namespace tessera::worker {

class PageTables {
 public:
  struct Size {
    int slots = 0;      // sequences
    int groups = 0;     // KV groups
    int positions = 0;  // of a sequence
  };
  PageTables() = default;
  explicit PageTables(const Size& size);
  // What they take; nothing where it is no number.
  static std::optional<std::int64_t> bytes(const Size& size);

  // Of all tables together.
  static std::uint64_t entries(const Size& size);

  // Appends what the other side must be told so that the tables of this sequence are as in `rows`.
  void changes_for(const SequenceRows& rows, std::vector<PageChange>& changes) const;

  // Changes that passed check_frame and decode_forward.
  Status apply(std::span<const PageChange> changes);
  // That every page that the rows see and write is there, and that they are no more than the group
  // has, as they are when each is a page of its own: scratch memory is made for so many. `windows`:
  // of each KV group, 0: none.
  Status check_visible(std::span<const int> windows, std::span<const std::uint32_t> kv_pages,
                       const WireSequence& sequence) const;
  std::span<const std::span<const std::int32_t>> of(int slot) const {
    return std::span(views_).subspan(static_cast<std::size_t>(slot * groups_),
                                     static_cast<std::size_t>(groups_));
  }

 private:
  std::span<std::int32_t> table(const PageChange& change) {
    const std::size_t at =
        change.slot * static_cast<std::size_t>(groups_) + std::size_t{change.kv_group};
    return std::span(entries_).subspan(at * pages_, pages_);
  }

  int slots_ = 0;
  int groups_ = 0;
  std::size_t pages_ = 0;  // entries of one table
  std::vector<std::int32_t> entries_;
  std::vector<std::span<const std::int32_t>> views_;  // of entries_: [slot][group]
};

}  // namespace tessera::worker
