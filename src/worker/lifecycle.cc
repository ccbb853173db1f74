#include "worker/lifecycle.h"

#include <algorithm>
#include <utility>

namespace tessera::worker {

const char* worker_state_name(WorkerState state) {
  constexpr const char* kNames[] = {"starting", "healthy", "suspect", "dead",
                                    "backoff",  "stopped", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* death_reason_name(DeathReason reason) {
  constexpr const char* kNames[] = {"start_failed", "refused",  "exited",
                                    "disconnected", "protocol", "hung"};
  return kNames[static_cast<std::size_t>(reason)];
}

void Lifecycle::enter(WorkerState state, Deadline now) {
  if (state_ == WorkerState::stopped || state_ == state) return;
  state_ = state;
  since_ = now;
}

void Lifecycle::started(Deadline now) {
  alive_since_ = looked_ = now;
  unwatched_ = {};
  mute_.reset();
  was_alive_ = true;
  // What somebody else brought back begins anew.
  if (std::exchange(failed_, false)) restarts_.clear();
  enter(WorkerState::healthy, now);
}

void Lifecycle::lost(Deadline now) {
  if (alive_since_ && now - *alive_since_ >= options_.settled) backoff_ = {};
  alive_since_.reset();
  enter(WorkerState::dead, now);
}

void Lifecycle::buried(Deadline now) {
  backoff_ = backoff_.count() == 0 ? options_.backoff_first : backoff_ * 2;
  backoff_ = std::min(backoff_, options_.backoff_most);
  while (!restarts_.empty() && now - restarts_.front() >= options_.restart_window)
    restarts_.pop_front();
  if (options_.most_restarts > 0 &&
      std::cmp_greater_equal(restarts_.size(), options_.most_restarts))
    failed_ = true;
  enter(failed_ ? WorkerState::failed : WorkerState::backoff, now);
}

void Lifecycle::stop(Deadline now) {
  enter(WorkerState::stopped, now);
}

void Lifecycle::hurry(Deadline now) {
  if (!hurries_since_) hurries_since_ = now;
}

// Between two looks at most what makes a worker suspect counts.
Deadline::duration Lifecycle::silence(Deadline now, Deadline heard) {
  const Deadline::duration most = options_.suspect_after * options_.heartbeat;
  if (heard > looked_) unwatched_ = {};
  unwatched_ += std::max(now - std::max(heard, looked_) - most, Deadline::duration::zero());
  looked_ = now;
  return now - heard - unwatched_;
}

std::optional<DeathReason> Lifecycle::tick(Deadline now, const Session::Health& health) {
  if (state_ != WorkerState::healthy && state_ != WorkerState::suspect) return std::nullopt;
  // A worker that was busy until its last answer gets a whole interval from then on.
  const Deadline::duration silent = silence(now, health.heard);
  const bool busy = health.oldest_job && mute_ != health.heard;
  const bool hung =
      busy ? now - *health.oldest_job >= options_.job_limit : silent >= options_.dead_after;
  if (hung) return DeathReason::hung;
  const bool suspicious = busy ? health.abandoned > 0 || health.late
                               : silent >= options_.suspect_after * options_.heartbeat;
  if (suspicious && !busy) mute_ = health.heard;
  enter(suspicious ? WorkerState::suspect : WorkerState::healthy, now);
  const bool too_long = state_ == WorkerState::suspect && hurries_since_ &&
                        now - std::max(since_, *hurries_since_) >= options_.dead_after;
  return too_long ? std::optional(DeathReason::hung) : std::nullopt;
}

void Lifecycle::tick(Deadline now) {
  const bool waits =
      state_ == WorkerState::backoff || (state_ == WorkerState::failed && options_.reappears);
  if (!waits || now - since_ < backoff_) return;
  if (was_alive_ && !failed_) restarts_.push_back(now);
  enter(WorkerState::starting, now);
}

Deadline Lifecycle::next_look(Deadline now) const {
  const bool waits = state_ == WorkerState::backoff || state_ == WorkerState::failed;
  return waits ? since_ + backoff_ : now + options_.heartbeat;
}

}  // namespace tessera::worker
