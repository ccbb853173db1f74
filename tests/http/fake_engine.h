// FakeEngine: a scripted engine behind the real HTTP stack. It has slots, a bounded queue, steps,
// stops and cancellation like the real one, but its tokens come from a script.
//
// One thread works in steps: each step admits waiting requests into free slots and moves every
// running one by one prefill step or one token. Cancelled requests leave between two steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace tessera::http_test {

struct FakeScript {
  std::vector<std::string> pieces = {"Hello", " world", "!"};
  bool repeat = false;  // begin again when the pieces are used up; else end with `stop`
  int prefill_steps = 1;
  int fail_after_tokens = -1;    // then an internal error
  Absence lost = Absence::none;  // then it fails for that, while status() says nothing of it
  std::optional<Error> refuse;   // from submit()
};

struct FakeOptions {
  std::chrono::microseconds step{1000};
  int parallel = 4;
  int max_queue = 8;
  int context = 4096;
};

class FakeEngine : public Engine {
 public:
  using Script = std::function<FakeScript(const GenerationRequest&)>;

  explicit FakeEngine(FakeOptions options = {}, Script script = {});
  ~FakeEngine() override;

  Result<RequestId> submit(GenerationRequest request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineStatus status() const override;
  void drain(double grace_s) override;

  void break_down(const std::string& fault);  // a fatal error: everything fails from now on
  // What status() says is away, and whether that is needed.
  void set_away(std::vector<std::string> away, bool needed, Absence absence = Absence::lost);
  std::vector<GenerationRequest> submitted() const;
  int cancelled() const;
  // Waits until nothing runs or waits; false after a minute.
  bool wait_idle() const;
  bool wait_running(int count) const;

 private:
  struct Sequence {
    RequestId id = 0;
    GenerationRequest request;
    EventSink sink;
    FakeScript script;
    int prefilled = 0;
    int generated = 0;
    std::string text;       // all pieces so far
    std::size_t shown = 0;  // bytes of it that were sent
    bool cancelled = false;
  };

  void run();
  bool step(Sequence& sequence);  // true when it ended
  bool emit_token(Sequence& sequence);
  void end(Sequence& sequence, GenerationEvent event, FinishReason reason, std::string stop = "");

  FakeOptions options_;
  Script script_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Sequence> queue_;
  std::deque<Sequence> running_;
  std::vector<GenerationRequest> submitted_;
  RequestId next_id_ = 1;
  int cancelled_ = 0;
  std::string fault_;
  std::vector<std::string> away_;
  bool needed_ = false;
  Absence absence_ = Absence::none;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::http_test
