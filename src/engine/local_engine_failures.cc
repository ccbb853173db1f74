// Whose requests end when a step or a part of the model fails.
#include <utility>

#include "base/log.h"
#include "engine/local_engine.h"

namespace tessera {

// Of requests that fail because a part of the model is away, or was when they needed it.
Absence LocalEngine::absence_of(const Error& error) const {
  if (error.code != ErrorCode::unavailable) return Absence::none;
  const Absence now = forward_.absence();
  return now == Absence::none ? Absence::lost : now;
}

// Ends those whose state lacks rows; whether there were any.
bool LocalEngine::fail_spoilt() {
  const SpoiltSlots spoilt = forward_.spoilt();
  if (spoilt.empty()) return false;
  const Error* last = nullptr;
  for (const auto& generation : running_) {
    const Error* why = generation->done() ? nullptr : spoilt.find(generation->slot());
    if (why == nullptr) continue;
    if (last == nullptr || why->message != last->message)
      log_warn("requests fail: {}", why->message);
    last = why;
    generation->fail(*why, absence_of(*why));
  }
  return last != nullptr;
}

// Of a step whose state is lost; none is under way then.
void LocalEngine::fail_step(const Error& error) {
  steps_.clear();
  if (error.code == ErrorCode::unavailable) return fail_running(error);
  fail_everything(error);
}

void LocalEngine::fail_running(const Error& error) {
  log_warn("requests fail: {}", error.message);
  const Absence absence = absence_of(error);
  for (const auto& generation : running_)
    if (!generation->done()) generation->fail(error, absence);
  deliver();
}

void LocalEngine::fail_waiting(const Error& error) {
  const Absence absence = absence_of(error);
  while (!waiting_.empty()) {
    const Submission submission = std::move(waiting_.front());
    waiting_.pop_front();
    GenerationEvent event;
    event.error = error;
    event.absence = absence;
    end_waiting(submission, std::move(event));
  }
}

void LocalEngine::fail_everything(const Error& error) {
  log_error("the engine stops: {}", error.message);
  metrics_.healthy.set(0);
  {
    std::lock_guard lock(mutex_);
    fault_ = error.message.empty() ? "unknown" : error.message;
    accepting_ = false;
    for (Submission& submission : inbox_) waiting_.push_back(std::move(submission));
    inbox_.clear();
  }
  for (const auto& generation : running_) generation->fail(error);
  deliver();
  fail_waiting(error);
}

}  // namespace tessera
