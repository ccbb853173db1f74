// Steps that are begun before the tokens of the one ahead are read: when that is, what is computed
// in vain, and that nothing stays under way.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "engine/engine_fixture.h"

namespace tessera {
namespace {

EngineSetup ahead(EngineSetup setup = {}) {
  setup.ahead = true;
  setup.options.parallel = 4;
  return setup;
}

GenerationRequest of_length(int tokens, std::vector<TokenId> prompt = {'?'}) {
  GenerationRequest request = endless();
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  return request;
}

void expect_at_rest(TestEngine& engine) {
  engine.engine->drain(30.0);
  EXPECT_EQ(engine.forward.under_way(), 0u);
  EXPECT_EQ(engine.pool.free_slots(), engine.pool.layout().slots);
}

// The engine stands in the first step's end, with the second one begun behind it.
void pause_in_first_step(TestEngine& engine, GenerationRequest request, Collector& running) {
  engine.forward.pause();
  running = engine.submit(std::move(request));
  engine.forward.wait_entered(1);
}

TEST(EngineAhead, TokensAreThoseOfStepsInTurn) {
  for (const float temperature : {0.0f, 1.0f}) {
    std::vector<GenerationRequest> requests;
    for (TokenId i = 0; i < 4; ++i) {
      requests.push_back(of_length(40 + 7 * i, {i, 2, 3}));
      requests.back().sampling.temperature = temperature;
      requests.back().sampling.seed = 5;
      requests.back().sampling.logit_bias = {{7, 2.0f}};
    }
    TestEngine engine(ahead());
    engine.forward.pause();
    std::vector<Collector> answers;
    for (const GenerationRequest& request : requests) answers.push_back(engine.submit(request));
    engine.forward.resume();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      answers[i].wait();
      EXPECT_EQ(answers[i].ids(), TestEngine(EngineSetup{}).run(requests[i]).ids());
    }
    expect_at_rest(engine);
    EXPECT_EQ(engine.forward.most_begun(), 2u);
  }
}

// An end that is known before costs no row.
TEST(EngineAhead, NothingIsBegunBehindTheLastToken) {
  for (const int tokens : {0, 1, 2, 3, 10}) {
    TestEngine engine(ahead());
    const Collector answer = engine.run(of_length(tokens));
    EXPECT_EQ(answer.finish()->reason, FinishReason::length);
    EXPECT_EQ(answer.tokens().size(), static_cast<std::size_t>(tokens));
    expect_at_rest(engine);
    EXPECT_EQ(engine.forward.rows().size(), static_cast<std::size_t>(std::max(tokens, 1)));
  }
}

// One that is found in the tokens costs one, whose slot the next request takes.
TEST(EngineAhead, AnEndInTheTextCostsOneRow) {
  EngineSetup setup = ahead(saying("one two"));
  setup.options.parallel = 1;
  setup.layout.slots = 1;
  TestEngine engine(setup);
  GenerationRequest stops = greedy();
  stops.stop = {" t"};
  Collector first = engine.submit(greedy());
  Collector second = engine.submit(stops);
  Collector third = engine.submit(greedy());
  for (Collector* answer : {&first, &second, &third}) answer->wait();
  EXPECT_EQ(first.text(), "one two");
  EXPECT_EQ(first.finish()->stop_token, toy_eog());
  EXPECT_EQ(first.finish()->usage.generated_tokens, 8);
  EXPECT_EQ(second.text(), "one");
  EXPECT_EQ(second.tokens().size(), 5u);
  EXPECT_EQ(third.text(), "one two");
  expect_at_rest(engine);
  EXPECT_EQ(engine.forward.rows().size(), 9u + 6u + 9u);
  const std::string page = engine.metrics.render();
  EXPECT_NE(page.find("tessera_generation_tokens_total 21"), std::string::npos) << page;
}

// What looks back needs the token, and holds up the others with it.
TEST(EngineAhead, PenaltiesAndLogProbabilitiesAreInTurn) {
  GenerationRequest repeats = of_length(30, {4, 5}), frequent = repeats, told = repeats;
  repeats.sampling.repetition_penalty = 1.5f;
  frequent.sampling.frequency_penalty = 0.5f;
  told.top_logprobs = 2;
  for (const GenerationRequest& slow : {repeats, frequent, told}) {
    TestEngine engine(ahead());
    engine.forward.pause();
    Collector answer = engine.submit(slow);
    Collector beside = engine.submit(of_length(30));
    engine.forward.resume();
    answer.wait();
    beside.wait();
    expect_at_rest(engine);
    EXPECT_EQ(answer.ids(), TestEngine(EngineSetup{}).run(slow).ids());
    EXPECT_EQ(beside.ids(), TestEngine(EngineSetup{}).run(of_length(30)).ids());
  }
  TestEngine engine(ahead());
  engine.run(repeats);
  expect_at_rest(engine);
  EXPECT_EQ(engine.forward.most_begun(), 1u);
}

TEST(EngineAhead, ACancelledRequestLeavesWithTwoUnderWay) {
  TestEngine engine(ahead());
  Collector running;
  pause_in_first_step(engine, endless(), running);
  engine.engine->cancel(engine.last_id);
  engine.forward.resume();
  running.wait();
  EXPECT_EQ(running.finish()->reason, FinishReason::cancelled);
  EXPECT_LE(running.tokens().size(), 1u);
  const Collector next = engine.run(of_length(20));
  EXPECT_EQ(next.ids(), TestEngine(EngineSetup{}).run(of_length(20)).ids());
  expect_at_rest(engine);
}

TEST(EngineAhead, WhoComesWaitsForWhatIsUnderWayAlone) {
  TestEngine engine(ahead());
  Collector running;
  pause_in_first_step(engine, of_length(40), running);
  Collector coming = engine.submit(of_length(20, {1, 2, 3, 4}));
  engine.forward.resume();
  running.wait();
  coming.wait();
  EXPECT_EQ(running.ids(), TestEngine(EngineSetup{}).run(of_length(40)).ids());
  EXPECT_EQ(coming.ids(), TestEngine(EngineSetup{}).run(of_length(20, {1, 2, 3, 4})).ids());
  expect_at_rest(engine);
  // The first two steps, then both: the prompt's four rows beside one.
  EXPECT_EQ(engine.forward.rows()[2], 5);
}

TEST(EngineAhead, AFailedStepLeavesNoneUnderWay) {
  for (const ErrorCode code : {ErrorCode::unavailable, ErrorCode::internal}) {
    TestEngine engine(ahead());
    Collector running;
    pause_in_first_step(engine, endless(), running);
    Collector waiting = engine.submit(of_length(20));
    engine.forward.break_with({code, "device 0 is lost"});
    engine.forward.resume();
    running.wait();
    waiting.wait();
    ASSERT_TRUE(running.error());
    EXPECT_EQ(running.error()->message, "device 0 is lost");
    EXPECT_EQ(running.tokens().size(), 0u);
    EXPECT_EQ(engine.engine->status().healthy, code == ErrorCode::unavailable);
    EXPECT_EQ(waiting.finish().has_value(), code == ErrorCode::unavailable);
    expect_at_rest(engine);
  }
}

// Nobody is told of it, but the next one would be.
TEST(EngineAhead, AStepInVainMayFail) {
  TestEngine engine(ahead(saying("a")));
  const int steps = 3;  // "a", the end, one in vain
  engine.forward.pause_at(steps);
  const Collector answer = engine.run(greedy());
  EXPECT_EQ(answer.text(), "a");
  engine.forward.wait_entered(steps);
  engine.forward.break_with({ErrorCode::internal, "device 0 is lost"});
  engine.forward.resume();
  expect_at_rest(engine);
  EXPECT_FALSE(engine.engine->status().healthy);
}

TEST(EngineAhead, DrainCancelsWhatIsUnderWay) {
  TestEngine engine(ahead());
  Collector running;
  pause_in_first_step(engine, endless(), running);
  std::thread resumer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine.forward.resume();
  });
  engine.engine->drain(0.001);
  resumer.join();
  EXPECT_EQ(running.finish()->reason, FinishReason::cancelled);
  expect_at_rest(engine);
}

}  // namespace
}  // namespace tessera
