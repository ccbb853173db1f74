// Whether the call before has left in the workspace what round_rows() makes of a product's input.
#pragma once

#include <cstring>

#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/sizes.h"
#include "harness.h"

namespace tessera::gpu::bench {

inline bool left_rounded(Runner& runner, const Input& input, int rows) {
  const std::vector<std::byte> left = runner.workspace.get();
  const auto row_bytes = std::size_t(rounded_row_bytes(input.cols));
  DeviceArray<std::byte> rounded(row_bytes * std::size_t(rows));
  GPU_OK(round_rows(runner.launch, input, rows, rounded.data()));
  runner.sync();
  const std::vector<std::byte> want = rounded.get();
  bool same = true;
  for (std::size_t at = 0; at < rounded.size(); at += row_bytes)
    same = same && std::memcmp(left.data() + at, want.data() + at,
                               std::size_t(input.cols / kSuperCols * kSuperBytes)) == 0;
  return same;
}

}  // namespace tessera::gpu::bench
