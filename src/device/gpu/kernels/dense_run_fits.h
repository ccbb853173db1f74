// What a plan and the question whether a layer fits (dense_run.h) both reckon with.
#pragma once

#include <cstdint>

#include "device/gpu/kernels/dense_run_plan.h"

namespace tessera::gpu::dense_run {

constexpr int supers_of(std::int64_t cols) {
  return static_cast<int>(cols / kSuperCols);
}
inline bool has_attention(const RunLayer& l) {
  return l.attention.n_head > 0;
}

// How gate and up are cut.
struct UpCut {
  int rounds, left;  // of groups in every block; tiles behind them
};
UpCut up_cut(std::int64_t hidden);

}  // namespace tessera::gpu::dense_run
