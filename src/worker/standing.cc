#include "worker/standing.h"

#include <fmt/format.h>

#include <chrono>

namespace tessera::worker {
namespace {

constexpr std::chrono::seconds kWorthSaying{1};  // of silence

}  // namespace

std::shared_ptr<Session> Standing::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

Result<std::shared_ptr<Session>> Standing::wait(int failed_starts) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return session_ || failed_starts_ >= failed_starts || state_ == WorkerState::failed ||
           state_ == WorkerState::stopped;
  });
  if (session_) return session_;
  return Error::make(ErrorCode::unavailable, "{}", failure_);
}

WorkerState Standing::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Absence Standing::absence() const {
  const std::lock_guard lock(mutex_);
  if (session_ && !session_->closed()) return Absence::none;
  if (failed_) return Absence::failed;
  return mismatch_ ? Absence::mismatch : Absence::lost;
}

bool Standing::await_failed() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || failed_; });
  return !stopping_;
}

std::optional<std::string> Standing::away() const {
  const std::lock_guard lock(mutex_);
  if (session_ && !session_->closed()) return std::nullopt;
  // The supervisor has not seen the end of the connection yet.
  if (session_) {
    const std::string why = session_->given_up().why;
    return "away: " + (why.empty() ? std::string("its connection ended") : why);
  }
  const std::string why = failure_.empty() ? "" : ": " + failure_;
  if (failed_) return fmt::format("away (failed, {} restarts){}", most_restarts_, why);
  return fmt::format("away ({}){}", worker_state_name(state_), why);
}

std::optional<std::string> Standing::unanswered() const {
  const std::shared_ptr<Session> now = session();
  if (!now || now->closed()) return std::nullopt;
  const Session::Health health = now->health();
  const auto seconds_since = [](Deadline then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  if (health.late)
    return fmt::format("not answering: a job is {:.1f} s old", seconds_since(*health.oldest_job));
  // Who is suspect without a late job is silent; a busy machine makes many so for a moment.
  if (state() != WorkerState::suspect || Clock::now() - health.heard < kWorthSaying)
    return std::nullopt;
  return fmt::format("not answering: silent for {:.1f} s", seconds_since(health.heard));
}

void Standing::hurry() {
  const std::lock_guard lock(mutex_);
  hurries_ = true;
}

bool Standing::hurries() const {
  const std::lock_guard lock(mutex_);
  return hurries_;
}

void Standing::begin_stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

bool Standing::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void Standing::publish(const News& news) {
  const std::lock_guard lock(mutex_);
  state_ = news.now;
  failed_ = news.failed;
  session_ = news.session;
  if (session_) failure_.clear();
  if (news.now == WorkerState::dead) failure_ = news.reason;
  if (news.now == WorkerState::dead && news.before == WorkerState::starting) ++failed_starts_;
  if (news.now != news.before) changed_.notify_all();
}

void Standing::set_mismatch(bool mismatch) {
  const std::lock_guard lock(mutex_);
  mismatch_ = mismatch;
}

}  // namespace tessera::worker
