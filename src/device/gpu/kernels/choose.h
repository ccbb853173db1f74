// Launch functions that choose a token from each row of logits, which stay where they are
// (device/token_choice.h). The terms are those of kernels.h; what they do is said in choose.cu.
//
//   choose(launch, {.logits = logits, .rows = rows, .n_vocab = n, .n_token = n, .choices = choices,
//                   .out = chosen});
#pragma once

#include "device/gpu/kernels/kernels.h"
#include "device/token_choice.h"

namespace tessera::gpu {

// One row's TokenChoice, as far as it is a draw.
struct RowChoice {
  double uniform;
  float temperature;
  float top_p;
  float min_p;
  std::int32_t top_k;
  std::int32_t first_change;
  std::int32_t n_changes;
};

struct ChosenRow {
  // kNoToken: no logit is finite, or one is infinite.
  std::int32_t id;
  float largest;
};

struct ChooseArgs {
  float* logits = nullptr;  // [rows][n_vocab], the changes applied afterwards
  int rows = 0;
  int n_vocab = 0;
  int n_token = 0;                           // ids from here on are never chosen
  const std::int32_t* suppressed = nullptr;  // rising; never chosen
  int n_suppressed = 0;
  bool sampled = false;                  // false: every row takes the largest logit
  const RowChoice* choices = nullptr;    // [rows]
  const LogitChange* changes = nullptr;  // of all rows, rising by id within each, ids < n_vocab
  float* before = nullptr;               // one a change: what restore_logits() needs
  // [rows], at `out` in steps of even number and `odd_rows` behind in odd ones, so that a step may
  // be read while the next one computes.
  ChosenRow* out = nullptr;
  std::int64_t odd_rows = 0;
  const std::int32_t* step = nullptr;  // its number, in device memory; null: even
  std::int32_t* ids = nullptr;         // [rows], for the next step's embed(); may be null
};
GpuError choose(const Launch& launch, const ChooseArgs& args);
std::size_t choose_workspace(int rows);
// Undoes the changes that choose() with the same arguments has made.
GpuError restore_logits(const Launch& launch, const ChooseArgs& args);

}  // namespace tessera::gpu
