// A LocalEngine over a scripted forward pass, and a sink that collects events, for tests.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/local_engine.h"
#include "engine/scripted_forward.h"
#include "text/vocab_toy.h"

namespace tessera {

inline text::Tokenizer toy_tokenizer() {
  auto tokenizer = text::Tokenizer::create(text::toy_byte_level_spec());
  EXPECT_TRUE(tokenizer);
  return *std::move(tokenizer);
}

// One request's events, and that they keep the contract.
class Collector {
 public:
  EventSink sink() {
    return [state = state_](GenerationEvent event) {
      std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->ended) << "an event after the last one";
      const auto take = [](std::vector<EmittedToken>& to, std::vector<EmittedToken>& from) {
        to.insert(to.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
      };
      EXPECT_TRUE(event.prompt_tokens.empty() || state->prompt_tokens.empty());
      take(state->prompt_tokens, event.prompt_tokens);
      take(state->tokens, event.tokens);
      state->text += event.text;
      state->ended = event.finish.has_value() || event.error.has_value();
      EXPECT_FALSE(event.finish && event.error);
      state->finish = std::move(event.finish);
      state->error = std::move(event.error);
      state->absence = event.absence;
      ++state->events;
      state->changed.notify_all();
    };
  }

  void wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->ended; });
  }
  void wait_events(int count) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->events >= count || state_->ended; });
  }

  // After wait().
  const std::string& text() const { return state_->text; }
  const std::vector<EmittedToken>& tokens() const { return state_->tokens; }
  const std::vector<EmittedToken>& prompt_tokens() const { return state_->prompt_tokens; }
  const std::optional<Finish>& finish() const { return state_->finish; }
  const std::optional<Error>& error() const { return state_->error; }
  Absence absence() const { return state_->absence; }
  bool ended() const {
    std::lock_guard lock(state_->mutex);
    return state_->ended;
  }
  std::vector<TokenId> ids() const {
    std::vector<TokenId> ids;
    for (const EmittedToken& token : state_->tokens) ids.push_back(token.id);
    return ids;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<EmittedToken> prompt_tokens;
    std::vector<EmittedToken> tokens;
    std::string text;
    std::optional<Finish> finish;
    std::optional<Error> error;
    Absence absence = Absence::none;
    bool ended = false;
    int events = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct EngineSetup {
  LocalEngineOptions options;
  SequencePoolLayout layout = {.groups = {{.window = 0, .pages = 64}}, .slots = 8, .max_chunk = 64};
  ScriptedForward::Script script = hashed_logits;
  bool ahead = runs_ahead();  // batches may be begun

  // What it is where a test does not say.
  static bool& runs_ahead() {
    static bool ahead = false;
    return ahead;
  }
};

// For tests that must come out the same with steps begun ahead and without.
class BothWays : public ::testing::TestWithParam<bool> {
 public:
  static std::string name(const ::testing::TestParamInfo<bool>& info) {
    return info.param ? "ahead" : "in_turn";
  }

 protected:
  void SetUp() override { EngineSetup::runs_ahead() = GetParam(); }
  void TearDown() override { EngineSetup::runs_ahead() = false; }
};

class TestEngine {
 public:
  explicit TestEngine(EngineSetup setup)
      : forward(tokenizer.vocabulary().size(), setup.layout,
                {.max_rows = setup.options.max_rows,
                 .max_logit_rows = setup.options.max_logit_rows,
                 .prefill_rows = setup.options.prefill_chunk},
                setup.script),
        pool(setup.layout) {
    if (setup.ahead) forward.run_ahead();
    ModelSpec& spec = forward.mutable_spec();
    for (TokenId id = 0; id < spec.n_token; ++id)
      if (tokenizer.is_never_sampled(id)) spec.suppressed_tokens.push_back(id);
    auto created = LocalEngine::create(
        setup.options,
        {.forward = forward, .pool = pool, .tokenizer = tokenizer, .metrics = metrics});
    EXPECT_TRUE(created) << (created ? "" : created.error().message);
    if (created) engine = *std::move(created);
  }
  ~TestEngine() { forward.resume(); }

  Collector submit(GenerationRequest request) {
    Collector collector;
    auto id = engine->submit(std::move(request), collector.sink());
    EXPECT_TRUE(id) << (id ? "" : id.error().message);
    last_id = id ? *id : 0;
    return collector;
  }
  Collector run(GenerationRequest request) {
    Collector collector = submit(std::move(request));
    collector.wait();
    return collector;
  }
  std::string refusal(GenerationRequest request) {
    auto id = engine->submit(std::move(request), [](GenerationEvent) { ADD_FAILURE(); });
    return id ? "accepted" : id.error().message;
  }

  text::Tokenizer tokenizer = toy_tokenizer();
  MetricsRegistry metrics;
  ScriptedForward forward;
  SequencePool pool;
  std::unique_ptr<LocalEngine> engine;
  RequestId last_id = 0;
};

// The script says `text` byte by byte after the prompt's single token, then ends.
inline ScriptedForward::Script says(std::string text, TokenId eog) {
  return one_choice([text = std::move(text), eog](std::span<const TokenId> history) {
    const std::size_t at = history.size() - 1;
    return at < text.size() ? static_cast<TokenId>(static_cast<unsigned char>(text[at])) : eog;
  });
}

inline TokenId toy_eog() {
  return toy_tokenizer().vocabulary().eog_ids().at(0);
}

inline EngineSetup saying(std::string text) {
  EngineSetup setup;
  setup.script = says(std::move(text), toy_eog());
  return setup;
}

inline GenerationRequest greedy(std::vector<TokenId> prompt = {'?'}) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0f;
  return request;
}

// Runs until it is told to end: never an end-of-generation token.
inline GenerationRequest endless() {
  GenerationRequest request = greedy();
  request.ignore_eos = true;
  return request;
}

}  // namespace tessera
