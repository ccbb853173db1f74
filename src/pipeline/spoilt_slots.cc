#include "pipeline/spoilt_slots.h"

#include <algorithm>
#include <optional>

namespace tessera {

void SpoiltSlots::apply(std::span<const StateChange> changes) {
  if (slots_.empty()) return;
  for (const StateChange& change : changes) {
    // What a page holds counts for the slot that it is copied with.
    if (change.kind == StateChange::Kind::copy_page) continue;
    std::optional<Error> copied;
    if (change.kind == StateChange::Kind::copy_slot)
      if (const Error* why = find(change.from)) copied = *why;
    std::erase_if(slots_, [&](const Slot& slot) { return slot.number == change.to; });
    if (copied) add(change.to, *copied);
  }
}

void SpoiltSlots::add(const BatchView& batch, const Error& error) {
  for (const SequenceRows& sequence : batch.sequences)
    if (sequence.n_rows > 0) add(sequence.slot, error);
}

void SpoiltSlots::add(int slot, const Error& error) {
  if (find(slot) == nullptr) slots_.push_back({.number = slot, .why = error});
}

const Error* SpoiltSlots::find(int slot) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [slot](const Slot& spoilt) { return spoilt.number == slot; });
  return found == slots_.end() ? nullptr : &found->why;
}

const Error* SpoiltSlots::any_of(const BatchView& batch) const {
  for (const SequenceRows& sequence : batch.sequences)
    if (const Error* why = find(sequence.slot)) return why;
  return nullptr;
}

const Error* SpoiltSlots::all_of(const BatchView& batch) const {
  if (slots_.empty()) return nullptr;
  const Error* last = nullptr;
  for (const SequenceRows& sequence : batch.sequences) {
    last = find(sequence.slot);
    if (last == nullptr) return nullptr;
  }
  return last;
}

}  // namespace tessera
