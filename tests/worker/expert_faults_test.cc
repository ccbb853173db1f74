// Workers that compute experts, killed, stopped, slow or wrong at any moment of their life, in
// prefill and decode, over every link: the host steps in, the request completes with the same bits,
// and the worker is used again when it is back. With `required` the request fails instead, with a
// typed error, and the next one goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "tests/worker/expert_rig.h"
#include "tests/worker/layer_rig.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;

constexpr double kResident = 30.0;  // percent

std::span<const TokenId> ids() {
  return prompt().first(60);
}

// Until the worker computes all of a request again; every answer until then is right too. The
// supervisor may find out a moment after the request that the worker is lost.
void expect_use(ExpertRig& rig, ModelRunner& runner, const std::vector<float>& healthy) {
  EXPECT_TRUE(eventually([&] {
    const double before = rig.fallbacks();
    const std::uint64_t calls = rig.metrics.worker.calls.value();
    EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
    return rig.fallbacks() == before && rig.metrics.worker.calls.value() > calls;
  })) << "it computes again";
}

class ExpertFaults : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(Cells, ExpertFaults, all_faults(), fault_name);

TEST_P(ExpertFaults, TheRequestCompletes) {
  const auto [fault, prefill, link] = GetParam();
  ExpertRig rig;
  rig.link = link;
  if (waits_for_a_deadline(fault)) rig.job_limit = 600ms * kTimeScale;
  if (is_corrupt(fault)) rig.turns(fault_word(fault));
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const int chunk = prefill ? 30 : 1;
  const std::vector<float> healthy = runner.logits(ids(), chunk);
  // On a busy machine a good worker may be late too.
  ASSERT_TRUE(eventually([&] { return rig.usable(); }));
  const double late = rig.fallbacks();
  const auto begin = Clock::now();
  {
    const Injection injection(fault, rig.pid(), [&] { return rig.fallbacks() > late; });
    // On a busy machine a worker may have no job in a request.
    EXPECT_TRUE(eventually([&] {
      EXPECT_TRUE(runner.logits(ids(), chunk) == healthy);
      return rig.fallbacks() > late;
    }));
  }
  EXPECT_LT(Clock::now() - begin, kBearable);
  EXPECT_EQ(rig.fallbacks("not_finite") > 0, fault == Fault::nan);
  if (fault == Fault::garbled || fault == Fault::absurd || fault == Fault::unasked) {
    EXPECT_TRUE(eventually([&] { return rig.deaths("protocol") > 0; }));
  }
  if (fault == Fault::garbled_job) {  // it is the worker that ends the connection
    EXPECT_TRUE(eventually([&] { return rig.deaths("exited") + rig.deaths("disconnected") > 0; }));
  }
  rig.revive(fault);
  // Over a connection that goes on the worker stays bad.
  if (fault == Fault::refusal || fault == Fault::nan) return;
  expect_use(rig, runner, healthy);
}

// --- Races ---

// With the patience that people have, and rounded payloads: whoever computes a job, late, on time
// or in the worker's place, the answer has the same bits.
class ExpertFaultsInARace : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(Cells, ExpertFaultsInARace, all_faults(), fault_name);

TEST_P(ExpertFaultsInARace, DoNotShow) {
  const auto [fault, prefill, link] = GetParam();
  const auto plain_of = [](ExpertPayload payload) {
    ExpertRig rig;
    rig.options.payload = payload;
    ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
    EXPECT_TRUE(runner.ready());
    return runner.logits(ids(), 30);
  };
  static const std::map<ExpertPayload, std::vector<float>> healthy = {
      {ExpertPayload::f32, plain_of(ExpertPayload::f32)},
      {ExpertPayload::int16, plain_of(ExpertPayload::int16)}};
  for (const auto& [payload, expected] : healthy) {
    SCOPED_TRACE(expert_payload_name(payload));
    ExpertRig rig;
    rig.link = link;
    rig.options = ExpertOptions{.payload = payload};
    if (waits_for_a_deadline(fault)) rig.job_limit = 600ms * kTimeScale;
    if (is_corrupt(fault)) rig.turns(fault_word(fault));
    ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
    ASSERT_TRUE(runner.ready());
    const int chunk = prefill ? 30 : 1;
    EXPECT_TRUE(runner.logits(ids(), chunk) == expected);
    {
      const Injection injection(fault, rig.pid());
      EXPECT_TRUE(runner.logits(ids(), chunk) == expected);
    }
    rig.revive(fault);
    EXPECT_TRUE(runner.logits(ids(), chunk) == expected);
  }
}

class ExpertRaces : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(Cells, ExpertRaces, hung_workers(), fault_name);

// A worker that hangs costs what the host takes, and the patience with which it was waited for,
// long before it is given up. Of some tries the best one counts, since the machine may be busy.
TEST_P(ExpertRaces, CostTheHostsTime) {
  const auto [fault, prefill, link] = GetParam();
  ExpertRig rig;
  rig.link = link;
  rig.job_limit = 60s;
  rig.options.grace = 5ms;
  if (is_corrupt(fault)) rig.turns(fault_word(fault));
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const int chunk = prefill ? 30 : 1;
  const auto most = fault == Fault::stop ? 45ms * kTimeScale : kBearable;
  bool cheap = false;
  for (int i = 0; i < 30 && !cheap; ++i) {
    const auto warm = Clock::now();
    const std::vector<float> healthy = runner.logits(ids(), chunk);
    const auto plain = Clock::now() - warm;
    // On a busy machine a good worker may be late too.
    ASSERT_TRUE(eventually([&] { return rig.usable(); }));
    const std::uint64_t won = rig.races_won();
    const auto begin = Clock::now();
    {
      const Injection injection(fault, rig.pid());
      EXPECT_TRUE(runner.logits(ids(), chunk) == healthy);
    }
    cheap = rig.races_won() > won && Clock::now() - begin - plain < most;
    if (fault == Fault::stop) send_signal(rig.pid(), SIGCONT);
  }
  EXPECT_TRUE(cheap) << "a deadline is 50 ms at least";
  EXPECT_GT(rig.fallbacks("deadline"), 0);
}

// One that says that its jobs take an hour and then hangs, with nothing but its own time to hold it
// to: it costs a multiple of what the host takes.
TEST(ExpertFault, ABoastfulWorkerGetsNoMoreTime) {
  ExpertRig rig;
  rig.job_limit = kNever;
  rig.turns("boasts");
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids(), 30);
  send_signal(rig.pid(), SIGUSR1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
  ASSERT_TRUE(eventually([&] { return rig.usable(); }));
  const double late = rig.fallbacks("deadline");
  send_signal(rig.pid(), SIGSTOP);
  EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
  EXPECT_GT(rig.fallbacks("deadline"), late) << "else it would be given up after 10 s";
}

// One that answers each job 30 ms late, within its deadline: a request pays for a few of them, and
// the worker is used again when it is as fast as before. In prefill, since the test models' experts
// take the host less for a single row than any call does.
class SlowExperts : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Races, SlowExperts, ::testing::Bool());

TEST_P(SlowExperts, ArePassedOverUntilTheyAreFastAgain) {
  constexpr int kChunk = 6;
  ExpertRig rig;
  rig.options.patience = 100ms;
  if (GetParam()) rig.options.grace = 5ms;
  rig.turns("lags");
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids(), kChunk);
  const auto calls_in = [&](int requests) {
    const std::uint64_t before = rig.metrics.worker.calls.value();
    for (int i = 0; i < requests; ++i) EXPECT_TRUE(runner.logits(ids(), kChunk) == healthy);
    return rig.metrics.worker.calls.value() - before;
  };
  // 40 but for races that the host wins, and for what a busy machine does.
  std::uint64_t calls = 0;
  ASSERT_TRUE(eventually([&] { return (calls = calls_in(1)) > 0; }));
  send_signal(rig.pid(), SIGUSR1);
  EXPECT_TRUE(eventually([&] { return calls_in(5) < 40; })) << "of 200";
  // What the host wins costs little, and so it takes long until it is too much.
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(runner.logits(ids(), kChunk) == healthy);
    return rig.fallbacks("slow") > 0;
  }));
  EXPECT_EQ(rig.races_won() > 0, GetParam());
  send_signal(rig.pid(), SIGUSR2);
  EXPECT_TRUE(eventually([&] { return calls_in(1) >= calls; }));
}

class ExpertLinks : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    rig_.link = GetParam();
    rig_.binary = FAKE_WORKER;
    rig_.mode = gate_.mode();
  }
  LoadGate gate_;
  ExpertRig rig_;
};
INSTANTIATE_TEST_SUITE_P(All, ExpertLinks, ::testing::ValuesIn(kLinks), link_param_name);

// A worker that never came is computed for until it does.
TEST_P(ExpertLinks, DeathWhileItLoads) {
  rig_.may_fail = true;
  std::unique_ptr<ModelRunner> runner;
  const RunnerOptions options = rig_.runner(model_path(), kResident, 1);
  gate_.close();
  std::thread loader([&] { runner = std::make_unique<ModelRunner>(model_path(), options); });
  EXPECT_TRUE(eventually([&] { return first_child() != 0; }));
  std::this_thread::sleep_for(100ms);
  send_signal(first_child(), SIGKILL);
  loader.join();
  ASSERT_TRUE(runner->ready());
  if (GetParam() != Link::tcp) {
    ASSERT_TRUE(rig_.failure.has_value());
    EXPECT_EQ(rig_.failure->code, ErrorCode::unavailable) << rig_.failure->message;
  }
  const std::vector<float> without = runner->logits(ids(), 30);
  rig_.revive(Fault::kill);
  gate_.open();
  expect_use(rig_, *runner, without);
}

TEST_P(ExpertLinks, DeathWhileItLoadsAgain) {
  ModelRunner runner(model_path(), rig_.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids(), 30);
  gate_.close();
  for (int i = 0; i < 2; ++i) {
    const int last = rig_.pid();
    send_signal(last, SIGKILL);
    rig_.revive(Fault::kill);
    ASSERT_TRUE(eventually([&] { return rig_.pid() != 0 && rig_.pid() != last; }));
    std::this_thread::sleep_for(100ms);
    EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
  }
  EXPECT_GT(rig_.fallbacks(), 0);
  gate_.open();
  expect_use(rig_, runner, healthy);
}

// --- Without the host ---

class ExpertsRequired : public ::testing::TestWithParam<std::tuple<Fault, Link>> {};
INSTANTIATE_TEST_SUITE_P(Cells, ExpertsRequired,
                         ::testing::Combine(::testing::Values(Fault::kill, Fault::stop,
                                                              Fault::absurd, Fault::few,
                                                              Fault::refusal, Fault::nan),
                                            ::testing::ValuesIn(kLinks)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", fault_word(std::get<0>(info.param)),
                                              link_name(std::get<1>(info.param)));
                         });

TEST_P(ExpertsRequired, FailTheRequestAndNotTheNext) {
  const auto [fault, link] = GetParam();
  ExpertRig rig;
  rig.link = link;
  rig.waits_for_its_worker();
  if (waits_for_a_deadline(fault)) rig.job_limit = kJobLimit;
  if (is_corrupt(fault)) rig.turns(fault_word(fault));
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids(), 30);
  ModelRunner::Sequence sequence = runner.start(400);
  Status status;
  const auto begin = Clock::now();
  {
    const Injection injection(fault, rig.pid());
    for (int i = 0; status && i < 100; ++i) {
      ModelRunner::Feed feed{&sequence, {7, 8, 9}};
      const Result<std::vector<float>> logits = runner.try_step({&feed, 1});
      if (!logits) status = logits.error();
    }
  }
  EXPECT_LT(Clock::now() - begin, kBearable);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable) << status.error().message;
  EXPECT_TRUE(runner.pipeline().keeps_state());
  EXPECT_EQ(rig.fallbacks(), 0);
  rig.revive(fault);
  // Its connection goes on, and it stays bad.
  if (fault == Fault::refusal || fault == Fault::nan) return;
  sequence = {};
  // With `required` a request fails until then.
  EXPECT_TRUE(eventually([&] {
    sequence = {};
    sequence = runner.start(400);
    ModelRunner::Feed feed{&sequence, {ids().begin(), ids().begin() + 30}};
    return runner.try_step({&feed, 1}).ok();
  }));
  sequence = {};
  EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
}

// Nobody else would compute meanwhile, so there is nothing to be won by not waiting.
class ExpertsRequiredLinks : public ::testing::TestWithParam<Link> {};
INSTANTIATE_TEST_SUITE_P(All, ExpertsRequiredLinks, ::testing::ValuesIn(kLinks), link_param_name);

TEST_P(ExpertsRequiredLinks, AStandstillCostsTimeAndNoAnswer) {
  ExpertRig rig;
  rig.link = GetParam();
  rig.waits_for_its_worker();
  ModelRunner runner(model_path(), rig.runner(model_path(), kResident, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids(), 30);
  std::atomic<bool> told = false;
  std::thread other([&, pid = rig.pid()] {
    EXPECT_TRUE(eventually([&] {
      send_signal(pid, SIGSTOP);  // again, where something else woke it
      const std::vector<std::string> away = runner.pipeline().away();
      return away.size() == 1 && away[0].starts_with("worker:0 is not answering: a job is ");
    }));
    EXPECT_TRUE(runner.pipeline().ready());
    told = true;
    send_signal(pid, SIGCONT);
  });
  do EXPECT_TRUE(runner.logits(ids(), 30) == healthy);
  while (!told);
  other.join();
  EXPECT_TRUE(runner.pipeline().away().empty());
  EXPECT_EQ(rig.fallbacks(), 0);
}

// --- Both roles at once ---

// Layers 0-1 here with experts in one worker, layers 2-3 in another one.
class BothRoles : public ::testing::TestWithParam<Link> {};
INSTANTIATE_TEST_SUITE_P(All, BothRoles, ::testing::ValuesIn(kLinks), link_param_name);

TEST_P(BothRoles, AreLostOneByOneAndTogether) {
  ExpertRig experts;
  experts.link = GetParam();
  LayerRig rig(GetParam());
  const RunnerOptions with_experts = experts.runner(model_path(), kResident, 1);
  rig.options.expert_resident = with_experts.expert_resident;
  rig.options.expert_workers = with_experts.expert_workers;
  rig.options.device.experts = with_experts.device.experts;
  rig.load();
  const std::vector<float> healthy = rig.runner->logits(question(), 64);
  ASSERT_GT(experts.metrics.worker.pairs.value(), 0u);
  const bool tcp = GetParam() == Link::tcp;
  // The rig of the layers names the instruction set, the other one does not.
  const auto experts_pid = [&] { return tcp ? experts.pid() : child_process(false, "--cpu-isa"); };
  {
    const Injection injection(Fault::kill, experts_pid());
    EXPECT_TRUE(rig.runner->logits(question(), 64) == healthy);
  }
  EXPECT_GT(experts.fallbacks(), 0);
  experts.revive(Fault::kill);
  ASSERT_TRUE(eventually([&] { return experts.healthy(); }));
  for (const bool both : {false, true}) {
    const int layers = tcp ? rig.pid() : child_process(true, "--cpu-isa");
    if (both) send_signal(experts_pid(), SIGKILL);
    send_signal(layers, SIGKILL);
    Status status;
    for (int i = 0; status && i < 2; ++i) status = rig.step(150, true);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::unavailable);
    rig.revive(Fault::kill);
    if (both) experts.revive(Fault::kill);
    ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().restart().ok(); }));
    ASSERT_TRUE(eventually([&] { return experts.healthy(); }));
    rig.sequence = {};
    EXPECT_TRUE(rig.runner->logits(question(), 64) == healthy);
    rig.sequence = rig.runner->start(400);
  }
}

}  // namespace
}  // namespace tessera::testing
