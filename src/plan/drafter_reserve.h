// What a drafter would take of the device with the head, to the byte: a rule that is fixed before
// an engine runs one, so that a plan can keep the memory free.
//
//   DrafterReserve reserve = drafter_reserve(spec, {.n_vocab = 4096, .context = 4096});
//   reserve.total();
//
// A drafter sees the newest kDrafterRows positions of a sequence, and beside them the rows of the
// block that is being verified. Of each it keeps, by sequence, the keys and values of its own
// layers (f16) and the outputs of the target's layers that it reads (bf16).
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "model/drafter.h"

namespace tessera {

inline constexpr int kDrafterRows = 4096;

struct DrafterUse {
  int n_vocab = 0;    // of the target's head
  int context = 0;    // positions a sequence may have
  int parallel = 1;   // sequences at a time
  int step_rows = 1;  // rows of the target that one step brings, at most
};

struct DrafterReserve {
  int rows = 0;  // of a sequence
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t features = 0;
  std::int64_t scratch = 0;
  std::int64_t total() const { return saturated_sum({weights, kv, features, scratch}); }
};

DrafterReserve drafter_reserve(const DrafterSpec& spec, const DrafterUse& use);

}  // namespace tessera
