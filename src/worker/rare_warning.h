// RareWarning: a line in the log for what a peer can make happen as often as it likes.
//
//   RareWarning failed{"clients that did not attach"};
//   failed.warn("the peer is gone");    // in full
//   failed.warn("the peer is gone");    // within kWarnPause of that: counted
//   failed.warn("the peer is gone");    // later: "the peer is gone; 1 more clients that ..."
//
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "worker/transport.h"

namespace tessera::worker {

inline constexpr auto kWarnPause = std::chrono::seconds(10);

class RareWarning {
 public:
  explicit RareWarning(std::string what) : what_(std::move(what)) {}
  // What was counted since the last line is told in the end.
  ~RareWarning() {
    if (counted_ > 0) log_warn("{} more {}", counted_, what_);
  }
  RareWarning(const RareWarning&) = delete;
  RareWarning& operator=(const RareWarning&) = delete;

  void warn(const std::string& text) {
    if (const auto line = line_at(text, Clock::now())) log_warn("{}", *line);
  }
  // The line that is due, if one is.
  std::optional<std::string> line_at(const std::string& text, Deadline now) {
    const std::lock_guard lock(mutex_);
    if (told_ && now - *told_ < kWarnPause) {
      ++counted_;
      return std::nullopt;
    }
    told_ = now;
    const std::uint64_t counted = std::exchange(counted_, 0);
    if (counted == 0) return text;
    return fmt::format("{}; {} more {} since the last line", text, counted, what_);
  }

 private:
  const std::string what_;
  std::mutex mutex_;
  std::optional<Deadline> told_;
  std::uint64_t counted_ = 0;
};

}  // namespace tessera::worker
