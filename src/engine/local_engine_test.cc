#include "engine/local_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "engine/engine_fixture.h"
#include "engine/generate.h"

namespace tessera {
namespace {

class LocalEngineRuns : public BothWays {};
INSTANTIATE_TEST_SUITE_P(Steps, LocalEngineRuns, ::testing::Bool(), LocalEngineRuns::name);

TEST_P(LocalEngineRuns, EndsAtTheEndOfGeneration) {
  TestEngine engine(saying("Hello, \xF0\x9F\x8C\x8D!"));
  const Collector answer = engine.run(greedy());
  ASSERT_TRUE(answer.finish());
  EXPECT_EQ(answer.text(), "Hello, \xF0\x9F\x8C\x8D!");
  EXPECT_EQ(answer.finish()->reason, FinishReason::stop);
  EXPECT_EQ(answer.finish()->stop_token, toy_eog());
  EXPECT_EQ(answer.finish()->stop_string, "");
  EXPECT_EQ(answer.finish()->usage.prompt_tokens, 1);
  EXPECT_EQ(answer.finish()->usage.generated_tokens, 13);
  EXPECT_EQ(answer.tokens().size(), 12u);
  EXPECT_EQ(answer.tokens()[0].piece, "H");
}

TEST_P(LocalEngineRuns, EndsAtAStopString) {
  TestEngine engine(saying("one two three"));
  GenerationRequest request = greedy();
  request.stop = {"three", " tw"};
  const Collector answer = engine.run(std::move(request));
  ASSERT_TRUE(answer.finish());
  EXPECT_EQ(answer.text(), "one");
  EXPECT_EQ(answer.finish()->reason, FinishReason::stop);
  EXPECT_EQ(answer.finish()->stop_string, " tw");
  EXPECT_FALSE(answer.finish()->stop_token);
}

TEST_P(LocalEngineRuns, HeldTextComesOutAtTheEnd) {
  TestEngine engine(saying("abc\xE2\x82"));
  GenerationRequest request = greedy();
  request.stop = {"bcd"};
  const Collector answer = engine.run(std::move(request));
  EXPECT_EQ(answer.text(), "abc\xEF\xBF\xBD");
}

TEST_P(LocalEngineRuns, EndsAtMaxTokensAndAtTheContext) {
  EngineSetup setup = saying("0123456789abcdefghij");
  setup.options.context = 12;
  TestEngine engine(setup);
  GenerationRequest request = greedy();
  request.max_tokens = 4;
  const Collector four = engine.run(request);
  EXPECT_EQ(four.text(), "0123");
  EXPECT_EQ(four.finish()->reason, FinishReason::length);
  request.max_tokens = 100;
  EXPECT_EQ(engine.run(request).text(), "0123456789a");
  request.max_tokens = -1;
  const Collector full = engine.run(request);
  EXPECT_EQ(full.text(), "0123456789a");
  EXPECT_EQ(full.finish()->reason, FinishReason::length);
  request.max_tokens = 0;
  const Collector none = engine.run(request);
  EXPECT_EQ(none.tokens().size(), 0u);
  EXPECT_EQ(none.finish()->reason, FinishReason::length);
}

TEST_P(LocalEngineRuns, EndOfGenerationCanBeIgnored) {
  TestEngine engine(saying("ab"));
  GenerationRequest request = greedy();
  request.ignore_eos = true;
  request.max_tokens = 5;
  const Collector answer = engine.run(request);
  EXPECT_EQ(answer.text(), "ab");  // the token is hidden
  EXPECT_EQ(answer.tokens().size(), 5u);
  EXPECT_EQ(answer.finish()->reason, FinishReason::length);
  request.show_special = true;
  EXPECT_EQ(engine.run(request).text().substr(0, 4), "ab<|");
}

TEST_P(LocalEngineRuns, LogprobsOfPromptAndAnswer) {
  EngineSetup setup;
  setup.options.max_logit_rows = 3;  // the prompt needs several steps
  TestEngine engine(setup);
  GenerationRequest request = greedy({10, 20, 30, 40, 50, 60, 70});
  request.prompt_logprobs = true;
  request.top_logprobs = 2;
  request.max_tokens = 1;
  const Collector answer = engine.run(request);
  ASSERT_EQ(answer.prompt_tokens().size(), 6u);
  const auto n_vocab = static_cast<std::size_t>(engine.forward.spec().n_vocab);
  for (std::size_t i = 0; i < 6; ++i) {
    const EmittedToken& token = answer.prompt_tokens()[i];
    EXPECT_EQ(token.id, request.prompt[i + 1]);
    std::vector<float> logits(n_vocab);
    hashed_logits(std::span(request.prompt).first(i + 1), logits);
    double sum = 0.0;
    for (float logit : logits) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(token.logprob,
                static_cast<double>(logits[static_cast<std::size_t>(token.id)]) - std::log(sum),
                1e-4);
    ASSERT_EQ(token.top.size(), 2u);
    EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
  }
  ASSERT_EQ(answer.tokens().size(), 1u);
  EXPECT_EQ(answer.tokens()[0].top[0].id, answer.tokens()[0].id);
  EXPECT_EQ(answer.tokens()[0].top[0].logprob, answer.tokens()[0].logprob);
}

TEST_P(LocalEngineRuns, SeedIsReportedAndRepeats) {
  TestEngine engine(EngineSetup{});
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.ignore_eos = true;
  request.max_tokens = 30;
  const Collector first = engine.run(request);
  const Collector second = engine.run(request);
  EXPECT_NE(first.ids(), second.ids());
  request.sampling.seed = first.finish()->usage.seed;
  EXPECT_EQ(engine.run(request).ids(), first.ids());
}

TEST_P(LocalEngineRuns, RefusesWhatCannotWork) {
  EngineSetup setup;
  setup.options.context = 8;
  TestEngine engine(setup);
  EXPECT_EQ(engine.refusal(greedy({})), "the prompt is empty; it must have a token");
  EXPECT_EQ(engine.refusal(greedy(std::vector<TokenId>(8, 1))),
            "the prompt has 8 tokens; with room for an answer the context of 8 holds at most 7");
  EXPECT_EQ(engine.refusal(greedy({-1})), "the prompt has token -1; ids go from 0 to 267");
  EXPECT_EQ(engine.refusal(greedy({268})), "the prompt has token 268; ids go from 0 to 267");
  GenerationRequest request = greedy();
  request.sampling.top_p = 2.0f;
  EXPECT_EQ(engine.refusal(request), "top_p is 2; it must be from 0 to 1");
  request = greedy();
  request.sampling.logit_bias = {{268, 1.0f}};
  EXPECT_EQ(engine.refusal(request), "logit_bias names token 268; ids go from 0 to 267");
  request = greedy();
  request.stop = {""};
  EXPECT_NE(engine.refusal(request), "accepted");
  request.stop = std::vector<std::string>(17, "x");
  EXPECT_NE(engine.refusal(request), "accepted");
  request = greedy();
  request.top_logprobs = 101;
  EXPECT_NE(engine.refusal(request), "accepted");
  request = greedy();
  request.max_tokens = -2;
  EXPECT_NE(engine.refusal(request), "accepted");
}

TEST_P(LocalEngineRuns, OptionsAreChecked) {
  const auto message = [](LocalEngineOptions options) {
    const text::Tokenizer tokenizer = toy_tokenizer();
    const EngineSetup setup;
    ScriptedForward forward(tokenizer.vocabulary().size(), setup.layout, {}, hashed_logits);
    SequencePool pool(setup.layout);
    MetricsRegistry metrics;
    auto engine = LocalEngine::create(
        options, {.forward = forward, .pool = pool, .tokenizer = tokenizer, .metrics = metrics});
    return engine ? std::string("created") : engine.error().message;
  };
  EXPECT_EQ(message({}), "created");
  EXPECT_EQ(message({.parallel = 0}), "parallel is 0; it must be at least 1");
  EXPECT_EQ(message({.parallel = 9}), "parallel is 9, but there are 8 sequence slots");
  EXPECT_EQ(message({.parallel = 4, .max_rows = 3}),
            "parallel is 4, but there are 3 rows in a step");
  EXPECT_EQ(message({.context = 5000}),
            "context is 5000; the KV pool holds at most 4096 positions of one sequence");
  EXPECT_NE(message({.max_queue = -1}), "created");
  EXPECT_NE(message({.prefill_chunk = 0}), "created");
}

TEST_P(LocalEngineRuns, FullQueueRefuses) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.options.max_queue = 1;
  TestEngine engine(setup);
  engine.forward.pause();
  std::vector<Collector> running;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = endless();
    request.max_tokens = 3;
    running.push_back(engine.submit(std::move(request)));
  }
  auto refused = engine.engine->submit(greedy(), [](GenerationEvent) { ADD_FAILURE(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::exhausted);
  engine.forward.resume();
  for (Collector& collector : running) {
    collector.wait();
    EXPECT_EQ(collector.finish()->usage.generated_tokens, 3);
  }
  EXPECT_TRUE(engine.run(greedy()).finish());
}

TEST_P(LocalEngineRuns, WhatDoesNotFitWaitsInOrder) {
  EngineSetup setup;
  setup.options.parallel = 4;
  setup.layout.groups = {{.window = 0, .pages = 4}};
  TestEngine engine(setup);
  engine.forward.pause();
  GenerationRequest large = endless();
  large.max_tokens = 190;  // 3 pages
  GenerationRequest small = endless();
  small.max_tokens = 2;
  Collector first = engine.submit(large);
  Collector second = engine.submit(large);
  Collector third = engine.submit(small);
  engine.forward.wait_entered(1);
  engine.forward.resume();
  second.wait_events(1);  // starts when the first is over, and the small one did not pass it
  EXPECT_TRUE(first.ended());
  third.wait();
  second.wait();
  EXPECT_EQ(second.finish()->usage.generated_tokens, 190);
}

TEST_P(LocalEngineRuns, CancelsWhereverARequestStands) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.options.prefill_chunk = 2;
  setup.options.context = 4096;
  setup.layout.groups = {{.window = 0, .pages = 128}};
  TestEngine engine(setup);
  engine.forward.pause();
  Collector decoding;
  RequestId prefilling_id = 0;
  int events = 0;
  // At the fifth token the prompt beside it, of two thousand steps, has begun.
  auto decoding_id =
      engine.engine->submit(endless(), [&, sink = decoding.sink()](GenerationEvent event) {
        if (++events == 5) engine.engine->cancel(prefilling_id);
        sink(std::move(event));
      });
  ASSERT_TRUE(decoding_id);
  engine.forward.wait_entered(1);
  Collector prefilling = engine.submit(greedy(std::vector<TokenId>(4000, 7)));
  prefilling_id = engine.last_id;
  Collector queued = engine.submit(endless());
  const RequestId queued_id = engine.last_id;
  engine.engine->cancel(queued_id);
  engine.engine->cancel(987654);  // nobody's
  engine.forward.resume();
  queued.wait();
  EXPECT_EQ(queued.finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(queued.finish()->usage.generated_tokens, 0);
  prefilling.wait();
  EXPECT_EQ(prefilling.finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(prefilling.finish()->usage.generated_tokens, 0);
  engine.engine->cancel(*decoding_id);
  decoding.wait();
  EXPECT_EQ(decoding.finish()->reason, FinishReason::cancelled);
  EXPECT_GE(decoding.tokens().size(), 5u);
  engine.engine->drain(0);
  EXPECT_EQ(engine.pool.free_slots(), setup.layout.slots);
}

TEST_P(LocalEngineRuns, DecodingGoesOnDuringALongPrompt) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.options.prefill_chunk = 4;
  TestEngine engine(setup);
  engine.forward.pause();
  GenerationRequest talker = endless();
  talker.max_tokens = 100;
  Collector decoding;
  Collector prefilling;
  bool prompt_was_first = false;
  auto id = engine.engine->submit(talker, [&, sink = decoding.sink()](GenerationEvent event) {
    if (event.finish) prompt_was_first = prefilling.ended();
    sink(std::move(event));
  });
  ASSERT_TRUE(id);
  GenerationRequest long_prompt = greedy(std::vector<TokenId>(800, 7));
  long_prompt.max_tokens = 1;
  ASSERT_TRUE(engine.engine->submit(long_prompt, prefilling.sink()));
  engine.forward.resume();
  decoding.wait();
  prefilling.wait();
  EXPECT_FALSE(prompt_was_first);  // 200 steps of prompt, 100 tokens
}

// So that nobody waits for a prompt's rows but its own first token.
TEST_P(LocalEngineRuns, RowsThatAreSampledComeFirst) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.options.prefill_chunk = 6;
  setup.layout.max_chunk = 4;
  TestEngine engine(setup);
  engine.forward.pause();
  GenerationRequest long_prompt = greedy(std::vector<TokenId>(80, 7));
  long_prompt.max_tokens = 1;
  GenerationRequest talker = endless();
  talker.max_tokens = 10;
  Collector prefilling = engine.submit(long_prompt);  // admitted first
  Collector decoding = engine.submit(talker);
  engine.forward.resume();
  decoding.wait();
  prefilling.wait();
  engine.engine->drain(1);
  int mixed = 0;
  for (std::size_t step = 2; step < engine.forward.rows().size(); ++step) {
    const std::vector<int>& logit_rows = engine.forward.logit_rows()[step];
    if (engine.forward.rows()[step] < 3 || logit_rows.empty()) continue;
    mixed += logit_rows.front() == 0;
  }
  EXPECT_GE(mixed, 8);
}

TEST_P(LocalEngineRuns, NeverSampledTokens) {
  EngineSetup setup;
  setup.script = one_choice([](std::span<const TokenId>) { return 267; });  // the filler
  TestEngine engine(setup);
  GenerationRequest request = endless();
  request.max_tokens = 5;
  for (const TokenId id : engine.run(request).ids()) EXPECT_NE(id, 267);
}

TEST_P(LocalEngineRuns, CountsWhatItDoes) {
  TestEngine engine(saying("abc"));
  engine.run(greedy());
  engine.run(greedy());
  engine.engine->drain(1);
  const std::string page = engine.metrics.render();
  EXPECT_NE(page.find("tessera_generations_total{finish=\"stop\"} 2"), std::string::npos) << page;
  EXPECT_NE(page.find("tessera_generation_tokens_total 8"), std::string::npos);
  EXPECT_NE(page.find("tessera_prompt_tokens_total{source=\"computed\"} 2"), std::string::npos);
  EXPECT_NE(page.find("tessera_requests_running 0"), std::string::npos);
}

TEST_P(LocalEngineRuns, ASinkMaySubmitAndCancel) {
  TestEngine engine(EngineSetup{});
  Collector second;
  GenerationRequest request = endless();
  request.max_tokens = 3;
  auto id = engine.engine->submit(request, [&](GenerationEvent event) {
    if (!event.finish) return;
    auto next = engine.engine->submit(endless(), second.sink());
    ASSERT_TRUE(next);
    engine.engine->cancel(*next);
  });
  ASSERT_TRUE(id);
  second.wait();
  EXPECT_EQ(second.finish()->reason, FinishReason::cancelled);
}

TEST(Generate, StreamsAndStops) {
  TestEngine engine(
      saying("Gr\xC3\xBC\xC3\x9F"
             "e"));
  std::vector<std::string> seen;
  auto whole = generate(*engine.engine, greedy(), [&](std::string_view text) {
    seen.emplace_back(text);
    return true;
  });
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->text,
            "Gr\xC3\xBC\xC3\x9F"
            "e");
  EXPECT_EQ(seen, (std::vector<std::string>{"G", "r", "\xC3\xBC", "\xC3\x9F", "e"}));
  EXPECT_EQ(whole->finish.reason, FinishReason::stop);
  EXPECT_EQ(whole->tokens.size(), 7u);

  TestEngine other(EngineSetup{});
  auto cut = generate(*other.engine, endless(), [](std::string_view) { return false; });
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->finish.reason, FinishReason::cancelled);
  EXPECT_FALSE(generate(*other.engine, greedy({})));
}

}  // namespace
}  // namespace tessera
