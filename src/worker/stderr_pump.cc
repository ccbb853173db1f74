#include "worker/stderr_pump.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {
constexpr std::size_t kMaxLine = 1024;
// What a pipe holds. Somebody else may have the other end and write on.
constexpr std::size_t kLastWords = 64 << 10;

struct Logged {
  LogLevel level = LogLevel::info;
  std::string_view text;
};

// A line of the child's own log gets a time and a level here, and needs no others: it begins
// "12:34:56.789 warning ". One that begins "tessera: " says why the child ends.
Logged as_logged(std::string_view line) {
  if (line.starts_with("tessera: ")) return {.level = LogLevel::warn, .text = line};
  constexpr std::string_view kTime = "00:00:00.000 ";
  const auto is_like = [](char c, char like) {
    return like == '0' ? c >= '0' && c <= '9' : c == like;
  };
  if (line.size() <= kTime.size() ||
      !std::equal(kTime.begin(), kTime.end(), line.begin(),
                  [&](char like, char c) { return is_like(c, like); }))
    return {.text = line};
  const std::string_view rest = line.substr(kTime.size());
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {{"debug ", LogLevel::debug},
                                                               {"info ", LogLevel::info},
                                                               {"warning ", LogLevel::warn},
                                                               {"error ", LogLevel::error}};
  for (const auto& [name, level] : kLevels)
    if (rest.starts_with(name)) return {level, rest.substr(name.size())};
  return {.text = line};
}
}  // namespace

Result<std::unique_ptr<StderrPump>> StderrPump::start(Fd pipe, std::string prefix,
                                                      bool keep_reason) {
  Fd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return system_error(fmt::format("the log of {}", prefix));
  std::unique_ptr<StderrPump> pump(
      new StderrPump(std::move(pipe), std::move(stop), std::move(prefix), keep_reason));
  try {
    pump->thread_ = std::thread([pump = pump.get()] { pump->run(); });
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "the log of {}: no thread for it: {}", pump->prefix_,
                       error.what());
  }
  return pump;
}

StderrPump::StderrPump(Fd pipe, Fd stop, std::string prefix, bool keep_reason)
    : pipe_(std::move(pipe)),
      stop_(std::move(stop)),
      prefix_(std::move(prefix)),
      keep_reason_(keep_reason) {}

StderrPump::~StderrPump() {
  stop();
}

std::string StderrPump::reason() {
  stop();
  return reason_;
}

void StderrPump::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void StderrPump::run() {
  std::array<char, 4096> bytes;
  for (std::size_t left = kLastWords; left > 0;) {
    pollfd entries[] = {{pipe_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) break;
    // What is in the pipe goes first, so that a dying child's last words are logged.
    if (entries[0].revents != 0) {
      const ssize_t n = ::read(pipe_.get(), bytes.data(), bytes.size());
      if (n <= 0 && errno != EINTR && errno != EAGAIN) break;
      if (n == 0) break;
      if (n > 0) take(bytes.data(), static_cast<std::size_t>(n));
      if (entries[1].revents != 0) left -= std::min(left, bytes.size());
      continue;
    }
    if (entries[1].revents != 0) break;
  }
  flush();
}

void StderrPump::take(const char* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const char c = bytes[i];
    if (c == '\n' || line_.size() >= kMaxLine) flush();
    if (c == '\n' || c == '\r') continue;
    const bool control = (c >= 0 && c < ' ' && c != '\t') || c == 127;
    line_.push_back(control ? '?' : c);
  }
}

void StderrPump::flush() {
  const auto [level, text] = as_logged(line_);
  constexpr std::string_view kReason = "tessera: ";
  if (keep_reason_ && text.starts_with(kReason))
    reason_ = text.substr(kReason.size());
  else if (!text.empty())
    log_at(level, "[{}] {}", prefix_, text);
  line_.clear();
}

}  // namespace tessera::worker
