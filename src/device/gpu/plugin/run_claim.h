// RunClaim: of the devices of this process on one GPU, one has runs (kernels/run.h). Two runs side
// by side, each with some of its blocks on the GPU, would wait for each other for good.
//
//   RunClaim claim = RunClaim::take(index);   // held() until another has it; given back at the end
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

namespace tessera::gpu {

class RunClaim {
 public:
  RunClaim() = default;
  static RunClaim take(int index) {
    RunClaim claim;
    if (index >= 0 && static_cast<std::size_t>(index) < taken().size() &&
        !taken()[static_cast<std::size_t>(index)].exchange(true))
      claim.index_ = index;
    return claim;
  }
  RunClaim(RunClaim&& other) noexcept : index_(std::exchange(other.index_, -1)) {}
  RunClaim& operator=(RunClaim&& other) noexcept {
    std::swap(index_, other.index_);
    return *this;
  }
  ~RunClaim() {
    if (held()) taken()[static_cast<std::size_t>(index_)] = false;
  }
  bool held() const { return index_ >= 0; }
  // Never given back: what runs may not end.
  void keep() { index_ = -1; }

 private:
  static std::array<std::atomic<bool>, 64>& taken() {
    static std::array<std::atomic<bool>, 64> all{};
    return all;
  }
  int index_ = -1;
};

}  // namespace tessera::gpu
