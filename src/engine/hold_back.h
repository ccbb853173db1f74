// HoldBack: whether requests wait until nothing runs, so that a shard can change over.
//
//   if (hold_back.holds(forward.restart_due(), now)) return;   // admit nobody
//
// Who computes a shard's layers may change only while no sequence has state there, and on a server
// that is never idle some sequence always has. So once a change is due nobody new is admitted, and
// what runs ends. Where that takes longer than `longest`, requests are admitted again, and the next
// try is nine times that later: in vain it costs a tenth of the time at most, and a request waits
// `longest` at most for it.
#pragma once

#include <chrono>
#include <optional>

namespace tessera {

class HoldBack {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kEvery = 10;  // of `longest`

  explicit HoldBack(Clock::duration longest) : longest_(longest) {}

  // Asked whenever a request could be admitted while others run.
  bool holds(bool due, Clock::time_point now) {
    if (!due) since_.reset();
    if (!due) return false;
    if (!since_ || now - *since_ >= kEvery * longest_) since_ = now;
    return now - *since_ < longest_;
  }

 private:
  Clock::duration longest_;
  std::optional<Clock::time_point> since_;  // the last try
};

}  // namespace tessera
