#include "engine/generate.h"

#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

// Events on their way from the engine's thread to the caller's.
class EventQueue {
 public:
  void push(GenerationEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    filled_.notify_one();
  }

  std::vector<GenerationEvent> wait() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<GenerationEvent> events_;
};

void append(std::vector<EmittedToken>& to, std::vector<EmittedToken>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

Result<Generated> generate(Engine& engine, GenerationRequest request, const OnText& on_text) {
  // Shared: the sink may still be in push() when the last event has been read here.
  const auto queue = std::make_shared<EventQueue>();
  TESSERA_ASSIGN(const RequestId id,
                 engine.submit(std::move(request),
                               [queue](GenerationEvent event) { queue->push(std::move(event)); }));
  Generated generated;
  bool wanted = true;
  for (;;) {
    for (GenerationEvent& event : queue->wait()) {
      append(generated.prompt_tokens, event.prompt_tokens);
      append(generated.tokens, event.tokens);
      generated.text += event.text;
      if (wanted && on_text && !event.text.empty() && !on_text(event.text)) {
        wanted = false;
        engine.cancel(id);
      }
      if (event.error) return *std::move(event.error);
      if (event.finish) {
        generated.finish = *std::move(event.finish);
        return generated;
      }
    }
  }
}

}  // namespace tessera
