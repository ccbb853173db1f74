#include "worker/lifecycle.h"

#include <algorithm>

namespace tessera::worker {

const char* worker_state_name(WorkerState state) {
  constexpr const char* kNames[] = {"starting", "healthy", "suspect", "dead", "backoff", "stopped"};
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
  alive_since_ = now;
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
  enter(WorkerState::backoff, now);
}

void Lifecycle::stop(Deadline now) {
  enter(WorkerState::stopped, now);
}

std::optional<DeathReason> Lifecycle::tick(Deadline now, const Session::Health& health) {
  if (state_ != WorkerState::healthy && state_ != WorkerState::suspect) return std::nullopt;
  // A worker that was busy until its last answer gets a whole interval from then on.
  const auto silence = now - health.heard;
  const bool busy = health.oldest_job.has_value();
  const bool hung =
      busy ? now - *health.oldest_job >= options_.job_limit : silence >= options_.dead_after;
  if (hung) return DeathReason::hung;
  const bool suspicious =
      busy ? health.abandoned > 0 : silence >= options_.suspect_after * options_.heartbeat;
  enter(suspicious ? WorkerState::suspect : WorkerState::healthy, now);
  return std::nullopt;
}

void Lifecycle::tick(Deadline now) {
  if (state_ == WorkerState::backoff && now - since_ >= backoff_) enter(WorkerState::starting, now);
}

Deadline Lifecycle::next_look(Deadline now) const {
  return state_ == WorkerState::backoff ? since_ + backoff_ : now + options_.heartbeat;
}

}  // namespace tessera::worker
