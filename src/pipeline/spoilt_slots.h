// SpoiltSlots: the sequences whose state lacks rows, since a piece with some of theirs failed and
// everything else went on (Shard::keeps_state()).
//
//   spoilt.apply(piece.changes);                       // piece by piece, of those that failed too
//   if (piece.failed()) spoilt.add(piece.view(), piece.error());
//   if (const Error* why = spoilt.find(slot)) ...      // the first failure of its rows
//
// A slot is spoilt until it is reset, or one that is not is copied to it. Pure.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "device/batch.h"
#include "pipeline/piece.h"

namespace tessera {

class SpoiltSlots {
 public:
  void apply(std::span<const StateChange> changes);
  void add(const BatchView& batch, const Error& error);

  bool empty() const { return slots_.empty(); }
  // Why a slot is spoilt, or any at all, or one of a batch's; null: it is not.
  const Error* find(int slot) const;
  const Error* any() const { return slots_.empty() ? nullptr : &slots_.front().why; }
  const Error* any_of(const BatchView& batch) const;
  // The same where all of a batch's are.
  const Error* all_of(const BatchView& batch) const;

 private:
  struct Slot {
    int number = 0;
    Error why;
  };
  void add(int slot, const Error& error);

  std::vector<Slot> slots_;
};

}  // namespace tessera
