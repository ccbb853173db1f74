// SequencePool: who may use which KV page and which recurrent slot. SequenceState: what one
// sequence has.
//
// Pages and slots are numbers; the bytes behind them belong to the devices (device.h). Admission
// reserves what a sequence can need at most, so a running sequence never lacks a page; pages are
// handed out as the sequence grows and pages that fell out of a group's window return at once.
//
//   TESSERA_ASSIGN(SequenceState sequence, pool.admit(prompt_tokens + max_new_tokens));
//   sequence.extend(64);             // room for 64 more positions; cannot fail up to the admitted
//   length batch_rows.pages = sequence.page_tables();
//
// Owned by the engine thread; not thread safe. A SequenceState gives everything back when destroyed
// and must not outlive its pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/batch.h"

namespace tessera {

struct SequencePoolLayout {
  struct Group {
    int window = 0;  // 0: pages stay for the sequence's life
    int pages = 0;   // in the pool
  };
  std::vector<Group> groups;
  int slots = 0;
  int max_chunk = 0;  // most positions one extend() adds before trim() is called
};

class SequencePool;

class SequenceState {
 public:
  SequenceState() = default;
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  ~SequenceState();

  bool valid() const { return pool_ != nullptr; }
  int slot() const { return slot_; }
  int length() const { return length_; }      // positions with room
  int capacity() const { return capacity_; }  // positions admitted

  // Room for `tokens` more positions, at most the layout's max_chunk since the last trim(length()).
  // Allocates nothing.
  void extend(int tokens);
  // Returns the pages that no position >= `next_position` can see any more.
  void trim(int next_position);
  std::span<const std::span<const std::int32_t>> page_tables() const { return views_; }

 private:
  friend class SequencePool;
  struct PageTable {
    std::vector<std::int32_t> pages;  // from position 0 on; -1 where returned
    int first_live = 0;               // first page not yet returned
    int reserved = 0;                 // pages promised at admission
  };
  void release();

  SequencePool* pool_ = nullptr;
  int slot_ = -1;
  int length_ = 0;
  int capacity_ = 0;
  std::vector<PageTable> groups_;
  std::vector<std::span<const std::int32_t>> views_;  // of groups_[].pages
};

class SequencePool {
 public:
  explicit SequencePool(SequencePoolLayout layout);

  // ErrorCode::exhausted when it does not fit now, ErrorCode::invalid when it never can.
  Result<SequenceState> admit(int max_positions);
  // The most positions that one sequence alone can have.
  int max_positions() const;

  int free_slots() const { return static_cast<int>(free_slots_.size()); }
  int free_pages(int group) const {
    return static_cast<int>(free_pages_[static_cast<std::size_t>(group)].size());
  }
  const SequencePoolLayout& layout() const { return layout_; }

 private:
  friend class SequenceState;
  int pages_needed(std::size_t group, int max_positions) const;

  SequencePoolLayout layout_;
  std::vector<int> free_slots_;
  std::vector<std::vector<std::int32_t>> free_pages_;  // per group
  std::vector<int> unreserved_;                        // per group: pages nobody was promised
};

}  // namespace tessera
