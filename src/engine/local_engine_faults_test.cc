// What the engine does when it ends, when a step fails, and when a shard is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "engine/engine_fixture.h"
#include "engine/local_engine.h"

namespace tessera {
namespace {

class LocalEngineFaults : public BothWays {};
INSTANTIATE_TEST_SUITE_P(Steps, LocalEngineFaults, ::testing::Bool(), LocalEngineFaults::name);

TEST_P(LocalEngineFaults, DrainLetsRunningOnesEnd) {
  EngineSetup setup;
  TestEngine engine(setup);
  GenerationRequest request = endless();
  request.max_tokens = 50;
  Collector running = engine.submit(request);
  Collector waiting = engine.submit(request);
  engine.engine->drain(30.0);
  EXPECT_TRUE(running.ended());
  EXPECT_TRUE(waiting.ended());
  EXPECT_EQ(waiting.finish()->reason, FinishReason::length);
  auto refused = engine.engine->submit(greedy(), [](GenerationEvent) { ADD_FAILURE(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
}

TEST_P(LocalEngineFaults, DrainCancelsAfterItsGrace) {
  TestEngine engine(EngineSetup{});
  engine.forward.pause();
  Collector running = engine.submit(endless());
  Collector waiting = engine.submit(endless());
  engine.forward.wait_entered(1);
  std::thread resumer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine.forward.resume();
  });
  engine.engine->drain(0.001);
  resumer.join();
  EXPECT_TRUE(running.ended());
  EXPECT_EQ(running.finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(waiting.finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(engine.engine->status().running, 0);
}

TEST_P(LocalEngineFaults, AFailedForwardIsFatal) {
  TestEngine engine(EngineSetup{});
  engine.forward.pause();
  Collector running = engine.submit(endless());
  Collector waiting = engine.submit(endless());
  engine.forward.wait_entered(1);
  engine.forward.break_with({ErrorCode::internal, "device 0 is lost"});
  engine.forward.resume();
  for (const Collector& collector : {running, waiting}) {
    Collector(collector).wait();
    ASSERT_TRUE(collector.error());
    EXPECT_EQ(collector.error()->message, "device 0 is lost");
  }
  const EngineStatus status = engine.engine->status();
  EXPECT_FALSE(status.healthy);
  EXPECT_EQ(status.fault, "device 0 is lost");
  EXPECT_EQ(engine.refusal(greedy()), "the engine stopped: device 0 is lost");
  engine.engine->drain(0);
  EXPECT_EQ(engine.pool.free_slots(), engine.pool.layout().slots);
}

TEST_P(LocalEngineFaults, ALostShardFailsWhatRunsAndServiceComesBack) {
  TestEngine engine(EngineSetup{});
  const Error lost{ErrorCode::unavailable, "worker:0 was lost"};
  engine.forward.pause();
  Collector running = engine.submit(endless());
  engine.forward.wait_entered(1);
  engine.forward.break_with(lost);
  engine.forward.set_away(lost);
  engine.forward.resume();
  running.wait();
  ASSERT_TRUE(running.error());
  EXPECT_EQ(running.error()->code, ErrorCode::unavailable);
  const EngineStatus status = engine.engine->status();
  EXPECT_TRUE(status.healthy);
  EXPECT_TRUE(status.recovering);
  EXPECT_EQ(status.absence, Absence::lost);
  EXPECT_EQ(status.fault, "worker:0 was lost");
  EXPECT_EQ(status.away, std::vector<std::string>{"worker:0 was lost"});
  EXPECT_EQ(engine.refusal(greedy()), "worker:0 was lost");

  engine.forward.set_away(std::nullopt);
  EXPECT_FALSE(engine.engine->status().recovering);
  EXPECT_TRUE(engine.engine->status().away.empty());
  Collector after = engine.submit(greedy());
  after.wait();
  EXPECT_TRUE(after.finish());
  engine.engine->drain(0);
  EXPECT_EQ(engine.pool.free_slots(), engine.pool.layout().slots);
}

// Though the shard may be back before anyone asks.
TEST_P(LocalEngineFaults, WhoWaitsForALostShardIsToldSo) {
  for (const Absence absence : {Absence::lost, Absence::mismatch, Absence::failed}) {
    EngineSetup setup;
    setup.options.parallel = 1;
    TestEngine engine(setup);
    const Error lost{ErrorCode::unavailable, "worker:0 was lost"};
    engine.forward.pause();
    Collector running = engine.submit(endless());
    Collector waiting = engine.submit(greedy());
    engine.forward.wait_entered(1);
    engine.forward.break_with(lost);
    engine.forward.set_away(lost, absence);
    engine.forward.resume();
    for (Collector* each : {&running, &waiting}) {
      each->wait();
      ASSERT_TRUE(each->error());
      EXPECT_EQ(each->absence(), absence);
    }
    engine.engine->drain(0);
    const std::string page = engine.metrics.render();
    for (const std::string& line :
         {std::string("tessera_generations_total{finish=\"error\"} 2\n"),
          fmt::format("tessera_generation_errors_total{{reason=\"{}\"}} 2\n",
                      absence_name(absence)),
          std::string("tessera_generation_errors_total{reason=\"other\"} 0\n")})
      EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

// A server that is never idle has no moment for it by itself.
TEST_P(LocalEngineFaults, WhoComesWaitsForAShardThatIsToChangeOver) {
  EngineSetup setup;
  setup.options.parallel = 2;
  TestEngine engine(setup);
  engine.forward.pause();
  GenerationRequest request = endless();
  request.max_tokens = 30;
  Collector running = engine.submit(request);
  engine.forward.wait_entered(1);
  engine.forward.set_due();
  Collector coming = engine.submit(request);
  engine.forward.resume();
  coming.wait();
  EXPECT_TRUE(running.ended());
  EXPECT_EQ(coming.tokens().size(), 30u);
  EXPECT_FALSE(engine.forward.restart_due());
  engine.engine->drain(0);
  for (const int rows : engine.forward.rows()) EXPECT_EQ(rows, 1) << "one at a time";
}

TEST_P(LocalEngineFaults, WhoComesDoesNotWaitForLongOnes) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.options.hold_back = std::chrono::milliseconds(20);
  setup.layout.groups[0].pages = 20'000;
  TestEngine engine(setup);
  GenerationRequest long_one = endless();
  long_one.max_tokens = 1'000'000;
  Collector running = engine.submit(long_one);
  const RequestId id = engine.last_id;
  running.wait_events(1);
  engine.forward.set_due();
  GenerationRequest short_one = endless();
  short_one.max_tokens = 5;
  Collector coming = engine.run(short_one);
  EXPECT_TRUE(coming.finish());
  EXPECT_FALSE(running.ended());
  EXPECT_TRUE(engine.forward.restart_due()) << "nothing changed over beside a sequence";
  engine.engine->cancel(id);
  running.wait();
}

TEST_P(LocalEngineFaults, AStepThatFailsAloneEndsItsOwnRequestsOnly) {
  EngineSetup setup;
  setup.options.parallel = 1;
  TestEngine engine(setup);
  engine.forward.pause();
  Collector spoilt = engine.submit(endless());
  Collector waiting = engine.submit(greedy());
  engine.forward.wait_entered(1);
  engine.forward.spoil_step({ErrorCode::unavailable, "worker:0 is late"});
  engine.forward.resume();
  spoilt.wait();
  ASSERT_TRUE(spoilt.error());
  EXPECT_EQ(spoilt.error()->code, ErrorCode::unavailable);
  EXPECT_EQ(spoilt.absence(), Absence::lost) << "of a part that is there again";
  waiting.wait();
  EXPECT_TRUE(waiting.finish());
  EXPECT_TRUE(engine.engine->status().healthy);
  engine.engine->drain(0);
  EXPECT_EQ(engine.pool.free_slots(), engine.pool.layout().slots);
}

// Its step gave good tokens to the others.
TEST_P(LocalEngineFaults, ASpoiltSequenceEndsItsOwnRequestOnly) {
  EngineSetup setup;
  setup.options.parallel = 2;
  GenerationRequest good = endless();
  good.max_tokens = 50;
  GenerationRequest bad = endless();
  bad.prompt = {5, 6};
  const std::vector<TokenId> alone = TestEngine(setup).run(good).ids();
  TestEngine engine(setup);
  Collector first = engine.submit(bad);
  first.wait_events(3);
  engine.forward.pause();
  Collector second = engine.submit(good);
  engine.forward.spoil_step({ErrorCode::unavailable, "worker:0 is late"}, 5);
  engine.forward.resume();
  first.wait();
  second.wait();
  ASSERT_TRUE(first.error());
  EXPECT_EQ(first.error()->message, "worker:0 is late");
  EXPECT_EQ(first.absence(), Absence::lost);
  ASSERT_TRUE(second.finish());
  EXPECT_EQ(second.ids(), alone);
  Collector next = engine.run(good);  // in the slot of the one that failed
  EXPECT_EQ(next.ids(), alone);
}

TEST_P(LocalEngineFaults, ARowWithoutNumbersEndsItsOwnRequest) {
  EngineSetup setup;
  setup.options.parallel = 2;
  setup.script = [](std::span<const TokenId> history, std::span<float> logits) {
    hashed_logits(history, logits);
    if (history[0] == 5 && history.size() > 3)
      std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
  };
  TestEngine engine(setup);
  GenerationRequest good = endless();
  good.max_tokens = 20;
  GenerationRequest bad = good;
  bad.prompt = {5};
  Collector first = engine.submit(bad);
  Collector second = engine.submit(good);
  first.wait();
  second.wait();
  ASSERT_TRUE(first.error());
  EXPECT_EQ(first.tokens().size(), 3u);
  ASSERT_TRUE(second.finish());
  EXPECT_TRUE(engine.engine->status().healthy);
}

}  // namespace
}  // namespace tessera
