#include "worker/page_tables.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked.h"

namespace tessera::worker {

PageTables::PageTables(const Size& size)
    : slots_(size.slots),
      groups_(size.groups),
      pages_((static_cast<std::size_t>(size.positions) + kPageTokens - 1) / kPageTokens) {
  const std::size_t tables = static_cast<std::size_t>(slots_) * static_cast<std::size_t>(groups_);
  entries_.assign(tables * pages_, -1);
  for (std::size_t i = 0; i < tables; ++i)
    views_.push_back(std::span<const std::int32_t>(entries_).subspan(i * pages_, pages_));
}

std::uint64_t PageTables::entries(const Size& size) {
  const auto pages = static_cast<std::uint64_t>(ceil_div(size.positions, kPageTokens));
  return static_cast<std::uint64_t>(size.slots) * static_cast<std::uint64_t>(size.groups) * pages;
}

std::optional<std::int64_t> PageTables::bytes(const Size& size) {
  const std::int64_t tables = std::int64_t{size.slots} * size.groups;
  const std::int64_t one =
      ceil_div<std::int64_t>(size.positions, kPageTokens) * sizeof(std::int32_t) +
      sizeof(std::span<const std::int32_t>);
  return checked_mul(tables, one);
}

void PageTables::changes_for(const SequenceRows& rows, std::vector<PageChange>& changes) const {
  CHECK(rows.slot >= 0 && rows.slot < slots_ && std::cmp_equal(rows.pages.size(), groups_));
  for (int group = 0; group < groups_; ++group) {
    const std::span<const std::int32_t> wanted = rows.pages[static_cast<std::size_t>(group)];
    const std::span<const std::int32_t> known = of(rows.slot)[static_cast<std::size_t>(group)];
    CHECK(wanted.size() <= known.size());
    // Entries past the end of the new table are left over from an older sequence; nothing sees
    // them before they are set.
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (known[i] == wanted[i]) continue;
      changes.push_back({.slot = static_cast<std::uint32_t>(rows.slot),
                         .kv_group = static_cast<std::uint16_t>(group),
                         .index = static_cast<std::uint32_t>(i),
                         .page = wanted[i]});
    }
  }
}

Status PageTables::apply(std::span<const PageChange> changes) {
  for (const PageChange& change : changes) {
    if (std::cmp_greater_equal(change.slot, slots_) || change.kv_group >= groups_ ||
        change.index >= pages_)
      return Error::make(ErrorCode::invalid,
                         "entry {} of the pages of slot {}, KV group {}: there "
                         "are {} entries, {} slots and {} groups",
                         change.index, change.slot, change.kv_group, pages_, slots_, groups_);
    table(change)[change.index] = change.page;
  }
  return {};
}

Status PageTables::check_visible(std::span<const int> windows,
                                 std::span<const std::uint32_t> kv_pages,
                                 const WireSequence& sequence) const {
  const std::span<const std::span<const std::int32_t>> tables = of(static_cast<int>(sequence.slot));
  const std::int64_t first = sequence.first_position;
  const std::int64_t last = first + sequence.rows - 1;
  for (std::size_t group = 0; group < tables.size(); ++group) {
    const int window = windows[group];
    const std::int64_t seen = window > 0 ? std::max<std::int64_t>(0, first - window + 1) : 0;
    if (last / kPageTokens - seen / kPageTokens >= std::int64_t{kv_pages[group]})
      return Error::make(ErrorCode::invalid,
                         "positions {} to {} of slot {} see more pages than the {} of KV group {}",
                         first, last, sequence.slot, kv_pages[group], group);
    for (std::int64_t page = seen / kPageTokens; page <= last / kPageTokens; ++page)
      if (std::cmp_greater_equal(page, pages_) || tables[group][static_cast<std::size_t>(page)] < 0)
        return Error::make(ErrorCode::invalid,
                           "positions {} to {} of slot {} need page {} of KV group {}, which was "
                           "not given",
                           first, last, sequence.slot, page, group);
  }
  return {};
}

}  // namespace tessera::worker
