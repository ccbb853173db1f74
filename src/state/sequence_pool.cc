#include "state/sequence_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace tessera {
namespace {

// In 64 bits, so that no number of positions wraps.
int page_count(std::int64_t positions) {
  return static_cast<int>(ceil_div<std::int64_t>(positions, kPageTokens));
}

}  // namespace

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      slot_(std::exchange(other.slot_, -1)),
      length_(std::exchange(other.length_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      groups_(std::move(other.groups_)),
      views_(std::move(other.views_)) {}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = std::exchange(other.pool_, nullptr);
  slot_ = std::exchange(other.slot_, -1);
  length_ = std::exchange(other.length_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  groups_ = std::move(other.groups_);
  views_ = std::move(other.views_);
  return *this;
}

SequenceState::~SequenceState() {
  release();
}

void SequenceState::extend(int tokens) {
  CHECK(valid() && tokens >= 0 && tokens <= capacity_ - length_,
        "extend by {} tokens at length {} of {}", tokens, length_, capacity_);
  length_ += tokens;
  const auto pages = static_cast<std::size_t>(page_count(length_));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    PageTable& table = groups_[g];
    if (pages == table.pages.size()) continue;
    const int live = static_cast<int>(pages) - table.first_live;
    CHECK(live <= table.reserved, "group {} needs {} pages but {} were reserved", g, live,
          table.reserved);
    std::vector<std::int32_t>& free = pool_->free_pages_[g];
    while (table.pages.size() < pages) {
      table.pages.push_back(free.back());
      free.pop_back();
    }
    views_[g] = table.pages;
  }
}

void SequenceState::trim(int next_position) {
  CHECK(valid() && next_position >= 0 && next_position <= length_, "trim to {} at length {}",
        next_position, length_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const int window = pool_->layout_.groups[g].window;
    if (window == 0) continue;
    // The oldest key that the query at next_position sees stands at next_position - window + 1.
    const int first_live = std::max(0, next_position - window + 1) / kPageTokens;
    PageTable& table = groups_[g];
    for (; table.first_live < first_live; ++table.first_live) {
      std::int32_t& page = table.pages[static_cast<std::size_t>(table.first_live)];
      pool_->free_pages_[g].push_back(std::exchange(page, -1));
    }
  }
}

void SequenceState::release() {
  if (!valid()) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PageTable& table = groups_[g];
    pool_->free_pages_[g].insert(pool_->free_pages_[g].end(),
                                 table.pages.begin() + table.first_live, table.pages.end());
    pool_->unreserved_[g] += table.reserved;
  }
  pool_->free_slots_.push_back(slot_);
  pool_ = nullptr;
}

SequencePool::SequencePool(SequencePoolLayout layout) : layout_(std::move(layout)) {
  CHECK(layout_.slots >= 0 && layout_.max_chunk > 0, "{} slots, chunks of {}", layout_.slots,
        layout_.max_chunk);
  // Numbers are taken from the back: the lowest go first.
  free_slots_.reserve(static_cast<std::size_t>(layout_.slots));
  for (int slot = layout_.slots; slot-- > 0;) free_slots_.push_back(slot);
  for (const SequencePoolLayout::Group& group : layout_.groups) {
    CHECK(group.window >= 0 && group.pages >= 0, "window {}, {} pages", group.window, group.pages);
    std::vector<std::int32_t>& pages = free_pages_.emplace_back();
    pages.reserve(static_cast<std::size_t>(group.pages));
    for (int page = group.pages; page-- > 0;) pages.push_back(page);
    unreserved_.push_back(group.pages);
  }
}

int SequencePool::pages_needed(std::size_t group, int max_positions) const {
  const int all = page_count(max_positions);
  const SequencePoolLayout::Group& g = layout_.groups[group];
  return g.window == 0 ? all : std::min(all, window_pages(g.window, layout_.max_chunk));
}

int SequencePool::max_positions() const {
  if (layout_.slots == 0) return 0;
  std::int64_t most = std::numeric_limits<int>::max();
  for (const SequencePoolLayout::Group& group : layout_.groups) {
    if (group.window > 0 && window_pages(group.window, layout_.max_chunk) <= group.pages) continue;
    most = std::min(most, std::int64_t{group.pages} * kPageTokens);
  }
  return static_cast<int>(most);
}

Result<SequenceState> SequencePool::admit(int max_positions) {
  if (max_positions <= 0 || max_positions > this->max_positions())
    return Error::make(ErrorCode::invalid,
                       "a sequence of {} positions: the KV pool holds 1 to {} of one sequence",
                       max_positions, this->max_positions());
  if (free_slots_.empty())
    return Error::make(ErrorCode::exhausted, "all {} sequence slots are in use", layout_.slots);
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const int needed = pages_needed(g, max_positions);
    if (needed > unreserved_[g])
      return Error::make(ErrorCode::exhausted,
                         "{} positions need {} pages of KV group {}; {} of {} are not reserved",
                         max_positions, needed, g, unreserved_[g], layout_.groups[g].pages);
  }

  SequenceState state;
  state.pool_ = this;
  state.slot_ = free_slots_.back();
  free_slots_.pop_back();
  state.capacity_ = max_positions;
  state.groups_.resize(layout_.groups.size());
  state.views_.resize(layout_.groups.size());
  const auto entries = static_cast<std::size_t>(page_count(max_positions));
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    state.groups_[g].pages.reserve(entries);
    state.groups_[g].reserved = pages_needed(g, max_positions);
    unreserved_[g] -= state.groups_[g].reserved;
  }
  return state;
}

}  // namespace tessera
