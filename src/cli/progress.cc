#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "plan/plan.h"

namespace tessera::cli {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kLineEvery = std::chrono::seconds(3);
constexpr int kBarCells = 24;

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

void write_error(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      shown_(log_enabled(LogLevel::info)),
      terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::update(std::int64_t done, std::int64_t total, const std::string& note) {
  done_ = done;
  total_ = total;
  if (!shown_ || finished_ || total <= 0) return;
  const auto now = Clock::now();
  if (terminal_) {
    if (drawn_ && now - last_ < kRedraw) return;
    draw_bar(now, note);
    last_ = now;
    return;
  }
  const std::int64_t quarter =
      static_cast<std::int64_t>(4.0 * static_cast<double>(done) / static_cast<double>(total));
  const auto since = now - (drawn_ ? last_ : begin_);
  if (since < kLineEvery || (quarter == told_quarter_ && since < 10 * kLineEvery)) return;
  told_quarter_ = quarter;
  last_ = now;
  print_line(now);
}

std::string Progress::rate_text(Clock::time_point now) const {
  const double elapsed = seconds_between(begin_, now);
  if (elapsed <= 0.0 || done_ <= 0) return {};
  const double rate = static_cast<double>(done_) / elapsed;
  const double left = static_cast<double>(total_ - done_) / rate;
  const std::string speed =
      options_.unit == ProgressUnit::bytes
          ? fmt::format("{}/s, ", format_bytes(static_cast<std::int64_t>(rate)))
          : std::string();
  return fmt::format("{}{:.0f} s left", speed, left);
}

void Progress::draw_bar(Clock::time_point now, const std::string& note) {
  const double part =
      std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
  const int cells = static_cast<int>(part * kBarCells);
  write_error(fmt::format("\r\x1b[K{} [{}{}] {:3.0f} %  {}{}{}", options_.what,
                          std::string(static_cast<std::size_t>(cells), '#'),
                          std::string(static_cast<std::size_t>(kBarCells - cells), '.'),
                          100.0 * part, rate_text(now), note.empty() ? "" : "  ", note));
  drawn_ = true;
}

void Progress::print_line(Clock::time_point now) {
  write_error(fmt::format("{}: {:.0f} %, {}\n", options_.what,
                          100.0 * static_cast<double>(done_) / static_cast<double>(total_),
                          rate_text(now)));
  drawn_ = true;
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (drawn_ && terminal_) write_error("\r\x1b[K");
  if (drawn_ && !terminal_)
    write_error(fmt::format("{}: done in {:.1f} s\n", options_.what,
                            seconds_between(begin_, Clock::now())));
}

}  // namespace tessera::cli
