// What was foreseen of a step's rows (AwayArgs::foreseen), and which of it is brought here.
//
// Two kernels go through the same list: the one that brings, and the one that chooses, which so
// knows the places without waiting for the copies.
#pragma once

#include "device/gpu/kernels/experts_away.h"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

struct Foreseen {
  std::int32_t ids[kDecodeRows * kMaxUsed];
  bool first[kDecodeRows * kMaxUsed];  // read over the link, and the first of its kind
  int count;

  // By a whole block. Wants a barrier behind it.
  __device__ void load(const std::int32_t* from, int n, int n_expert) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (thread == 0) count = n;
    for (int i = thread; i < n; i += threads) ids[i] = from[i];
    __syncthreads();
    for (int i = thread; i < n; i += threads) {
      bool is_first = ids[i] >= n_expert;
      for (int j = 0; j < i; ++j) is_first &= ids[j] != ids[i];
      first[i] = is_first;
    }
  }
  __device__ bool of_row(std::int64_t begin, int n_used, std::int32_t id) const {
    bool any = false;
    for (int i = 0; i < n_used && count > 0; ++i) any |= ids[begin + i] == id;
    return any;
  }
  // -1: it is not brought.
  __device__ int place_of(std::int32_t id) const {
    int place = 0;
    for (int i = 0; i < count && place < kBroughtPlaces; ++i) {
      if (!first[i]) continue;
      if (ids[i] == id) return place;
      ++place;
    }
    return -1;
  }
};

}  // namespace tessera::gpu
