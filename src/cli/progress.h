// Progress of a long piece of work, on standard error: a bar that redraws itself on a terminal, a
// few plain lines elsewhere, nothing with --log-level warn.
//
//   Progress progress({.what = "loading", .unit = ProgressUnit::bytes});
//   progress.update(done, total);      // as often as you like, from one thread
//   progress.finish();                 // or the destructor
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::cli {

enum class ProgressUnit { bytes, steps };

struct ProgressOptions {
  std::string what;
  ProgressUnit unit = ProgressUnit::bytes;
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done, std::int64_t total, const std::string& note = {});
  // Clears the bar; elsewhere says how long it took.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw_bar(Clock::time_point now, const std::string& note);
  void print_line(Clock::time_point now);
  std::string rate_text(Clock::time_point now) const;

  const ProgressOptions options_;
  const bool shown_;
  const bool terminal_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_{};
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
  std::int64_t told_quarter_ = 0;
  bool drawn_ = false;
  bool finished_ = false;
};

}  // namespace tessera::cli
