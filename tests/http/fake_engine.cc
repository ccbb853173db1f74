#include "tests/http/fake_engine.h"

#include <algorithm>

namespace tessera::http_test {
namespace {

constexpr TokenId kFirstScriptedToken = 300;

// Bytes at the end of `text` that may become a stop string.
std::size_t held_back(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t most = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > most; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) most = n;
    }
  }
  return most;
}

EmittedToken token_of(const GenerationRequest& request, TokenId id, std::string piece) {
  EmittedToken token{.id = id, .logprob = -0.5f, .piece = std::move(piece)};
  for (int i = 0; i < request.top_logprobs; ++i) {
    token.top.push_back({.id = 'a' + i, .logprob = -1.0f - static_cast<float>(i)});
  }
  return token;
}

}  // namespace

FakeEngine::FakeEngine(FakeOptions options, Script script)
    : options_(options), script_(std::move(script)) {
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<RequestId> FakeEngine::submit(GenerationRequest request, EventSink sink) {
  FakeScript script = script_ ? script_(request) : FakeScript{};
  const std::lock_guard lock(mutex_);
  if (!fault_.empty()) return Error::make(ErrorCode::unavailable, "{}", fault_);
  if (needed_ && !away_.empty()) return Error{ErrorCode::unavailable, away_.front()};
  if (script.refuse) return *script.refuse;
  if (queue_.size() >= static_cast<std::size_t>(options_.max_queue)) {
    return Error::make(ErrorCode::exhausted, "the queue is full ({} requests)", options_.max_queue);
  }
  submitted_.push_back(request);
  queue_.push_back({.id = next_id_,
                    .request = std::move(request),
                    .sink = std::move(sink),
                    .script = std::move(script)});
  changed_.notify_all();
  return next_id_++;
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (auto* list : {&queue_, &running_}) {
    for (Sequence& sequence : *list) {
      if (sequence.id == id) sequence.cancelled = true;
    }
  }
}

EngineStatus FakeEngine::status() const {
  const std::lock_guard lock(mutex_);
  const bool recovering = needed_ && !away_.empty();
  return {.healthy = fault_.empty(),
          .recovering = recovering,
          .absence = recovering ? absence_ : Absence::none,
          .fault = recovering ? away_.front() : fault_,
          .away = away_,
          .running = static_cast<int>(running_.size()),
          .queued = static_cast<int>(queue_.size()),
          .max_queue = options_.max_queue,
          .parallel = options_.parallel,
          .context = options_.context};
}

void FakeEngine::drain(double) {}

void FakeEngine::set_away(std::vector<std::string> away, bool needed, Absence absence) {
  const std::lock_guard lock(mutex_);
  away_ = std::move(away);
  needed_ = needed;
  absence_ = absence;
}

void FakeEngine::break_down(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
}

std::vector<GenerationRequest> FakeEngine::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

int FakeEngine::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

bool FakeEngine::wait_idle() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::minutes(1),
                           [&] { return queue_.empty() && running_.empty(); });
}

bool FakeEngine::wait_running(int count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::minutes(1), [&] {
    // One that is queued only until the engine looks would still take a place of the queue.
    return running_.size() + queue_.size() >= static_cast<std::size_t>(count) &&
           running_.size() >= static_cast<std::size_t>(std::min(count, options_.parallel));
  });
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    while (running_.size() < static_cast<std::size_t>(options_.parallel) && !queue_.empty()) {
      running_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    // Sinks are called under the lock: the HTTP layer only posts from them.
    std::erase_if(running_, [&](Sequence& sequence) { return step(sequence); });
    std::erase_if(queue_, [&](Sequence& sequence) { return sequence.cancelled && step(sequence); });
    changed_.notify_all();
    if (running_.empty() && queue_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    } else {
      changed_.wait_for(lock, options_.step, [&] { return stopping_; });
    }
  }
  for (auto* list : {&running_, &queue_}) {
    for (Sequence& sequence : *list) end(sequence, {}, FinishReason::cancelled);
  }
}

bool FakeEngine::step(Sequence& sequence) {
  if (sequence.cancelled) {
    ++cancelled_;
    end(sequence, {}, FinishReason::cancelled);
    return true;
  }
  if (!fault_.empty()) {
    GenerationEvent event;
    event.error = Error::make(ErrorCode::unavailable, "{}", fault_);
    sequence.sink(std::move(event));
    return true;
  }
  if (sequence.script.lost != Absence::none) {
    GenerationEvent event;
    event.error = Error::make(ErrorCode::unavailable, "worker:0 was lost");
    event.absence = sequence.script.lost;
    sequence.sink(std::move(event));
    return true;
  }
  if (sequence.prefilled < sequence.script.prefill_steps) {
    if (++sequence.prefilled == sequence.script.prefill_steps && sequence.request.prompt_logprobs) {
      GenerationEvent event;
      for (std::size_t i = 1; i < sequence.request.prompt.size(); ++i) {
        const TokenId id = sequence.request.prompt[i];
        event.prompt_tokens.push_back(
            token_of(sequence.request, id, std::string(1, static_cast<char>(id))));
      }
      sequence.sink(std::move(event));
    }
    return false;
  }
  return emit_token(sequence);
}

bool FakeEngine::emit_token(Sequence& sequence) {
  const FakeScript& script = sequence.script;
  GenerationEvent event;
  if (sequence.generated == script.fail_after_tokens) {
    event.error = Error::make(ErrorCode::internal, "the device was lost");
    sequence.sink(std::move(event));
    return true;
  }
  const auto index = static_cast<std::size_t>(sequence.generated);
  const bool more = script.repeat || sequence.request.ignore_eos || index < script.pieces.size();
  if (!more) {
    event.text = sequence.text.substr(sequence.shown);
    end(sequence, std::move(event), FinishReason::stop);
    return true;
  }
  const std::size_t which = index % script.pieces.size();
  event.tokens.push_back(token_of(
      sequence.request, kFirstScriptedToken + static_cast<TokenId>(which), script.pieces[which]));
  sequence.text += script.pieces[which];
  ++sequence.generated;
  for (const std::string& stop : sequence.request.stop) {
    const std::size_t at = sequence.text.find(stop);
    if (at == std::string::npos) continue;
    event.text = sequence.text.substr(sequence.shown, at - sequence.shown);
    end(sequence, std::move(event), FinishReason::stop, stop);
    return true;
  }
  const bool last = sequence.generated == sequence.request.max_tokens;
  const std::size_t visible =
      sequence.text.size() - (last ? 0 : held_back(sequence.text, sequence.request.stop));
  event.text = sequence.text.substr(sequence.shown, visible - sequence.shown);
  sequence.shown = visible;
  if (last) {
    end(sequence, std::move(event), FinishReason::length);
    return true;
  }
  sequence.sink(std::move(event));
  return false;
}

void FakeEngine::end(Sequence& sequence, GenerationEvent event, FinishReason reason,
                     std::string stop) {
  event.finish = Finish{.reason = reason,
                        .stop_string = std::move(stop),
                        .usage = {.prompt_tokens = static_cast<int>(sequence.request.prompt.size()),
                                  .generated_tokens = sequence.generated,
                                  .queue_s = 0.001,
                                  .prompt_s = 0.002,
                                  .generate_s = 0.004,
                                  .seed = sequence.request.sampling.seed.value_or(7)}};
  sequence.sink(std::move(event));
}

}  // namespace tessera::http_test
