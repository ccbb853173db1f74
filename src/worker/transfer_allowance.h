// TransferAllowance: how long a peer may keep this end of a transfer waiting: a patience for each
// frame, and for all of them the time that kLeastTransferRate takes and one patience more.
//
//   TransferAllowance allowance(kTransferPatience);
//   const Result<bool> came =
//       allowance.spend([&](Deadline until) { return channel.receive(frame, until); });
//   allowance.moved(frame.body().size());
//
// Only what is spent counts: what this end does with the bytes is its own time. Threads: one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "worker/transport.h"

namespace tessera::worker {

// Within so much the peer sends, or takes, the next frame of a transfer; otherwise it has stalled.
inline constexpr std::chrono::milliseconds kTransferPatience{30'000};
inline constexpr std::uint64_t kLeastTransferRate = 1 << 20;  // bytes a second, over all of it

class TransferAllowance {
 public:
  explicit TransferAllowance(std::chrono::milliseconds patience)
      : patience_(patience), left_(patience) {}

  // Waits for the next frame.
  template <typename Wait>
  auto spend(Wait wait) {
    const Deadline begin = Clock::now();
    auto result = wait(begin + most());
    waited(Clock::now() - begin);
    return result;
  }
  void moved(std::uint64_t bytes) {
    left_ += std::chrono::microseconds(bytes * 1'000'000 / kLeastTransferRate);
  }

  Clock::duration most() const {
    return std::clamp<Clock::duration>(left_, Clock::duration(0), patience_);
  }
  void waited(Clock::duration time) { left_ -= time; }

 private:
  Clock::duration patience_, left_;
};

}  // namespace tessera::worker
