// Workers that hold layers, killed, stopped, slow or wrong at any moment of their life, in prefill
// and decode, over every link: forward() fails in time with a typed error, nothing else breaks, and
// after restart() a new sequence gets the answers of the plain run. kills_test.cc does it a
// thousand times.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "pipeline/stand_in_shard.h"
#include "tests/worker/fault.h"
#include "tests/worker/layer_rig.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;

void expect_lost(const Status& status, Clock::time_point begin) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable) << status.error().message;
  EXPECT_LT(Clock::now() - begin, kBearable);
}

class LayerFaults : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(Cells, LayerFaults, all_faults(), fault_name);

TEST_P(LayerFaults, FailWhatRunsAndNothingElse) {
  const auto [fault, prefill, link] = GetParam();
  LayerRig rig(link, waits_for_a_deadline(fault) ? kJobLimit : kNever);
  if (is_corrupt(fault)) rig.turns(fault_word(fault));
  rig.load();
  ASSERT_TRUE(rig.step(30, true));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(rig.step(1, true));
  const auto begin = Clock::now();
  Status status;
  {
    const Injection injection(fault, rig.pid());
    if (prefill) status = rig.step(150, true);
    // A signal may come a moment after the step that follows it.
    for (int i = 0; status && i < (fault == Fault::slow ? 5 : 100); ++i) status = rig.step(1, true);
  }
  if (fault == Fault::slow) {
    EXPECT_TRUE(status) << status.error().message;
    rig.sequence = {};
    EXPECT_TRUE(rig.runner->logits(question(), 64) == plain_logits());
    return;
  }
  expect_lost(status, begin);
  EXPECT_FALSE(rig.runner->pipeline().forward({}).ok()) << "until restart()";
  EXPECT_NE(rig.workers.metrics.render().find("tessera_worker_lost_total"), std::string::npos);
  rig.revive(fault);
  rig.expect_recovery();
  // Whoever looks at the counters sees what to look for: a worker that hangs, or one that is gone.
  const auto hung =
      rig.workers.metrics
          .counter("tessera_worker_deaths_total", "", {{"worker", "worker:0"}, {"reason", "hung"}})
          .value();
  EXPECT_EQ(hung > 0, waits_for_a_deadline(fault));
}

class LayerLinks : public ::testing::TestWithParam<Link> {};
INSTANTIATE_TEST_SUITE_P(All, LayerLinks, ::testing::ValuesIn(kLinks), link_param_name);

// At start a spawned worker that dies is an error; one at an address may come back in time.
TEST_P(LayerLinks, DeathWhileItLoads) {
  const bool tcp = GetParam() == Link::tcp;
  const LoadGate gate;
  LayerRig rig(GetParam());
  rig.workers.words = {"worker", gate.mode()};
  rig.workers.binary = FAKE_WORKER;
  rig.prepare();
  rig.options.may_fail = true;
  // So that it is there again before it has been looked for in vain too often.
  rig.workers.lifecycle.backoff_first = rig.workers.lifecycle.backoff_most = 3s * kTimeScale;
  gate.close();
  const auto begin = Clock::now();
  Status loaded;
  std::thread loader([&] { loaded = rig.try_load(); });
  EXPECT_TRUE(eventually([&] { return rig.pid() != 0; }));
  std::this_thread::sleep_for(100ms);
  send_signal(rig.pid(), SIGKILL);
  rig.revive(Fault::kill);
  gate.open();
  loader.join();
  EXPECT_LT(Clock::now() - begin, kBearable);
  if (!tcp) {
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::unavailable) << loaded.error().message;
    return;
  }
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(rig.runner->logits(question(), 64) == plain_logits());
}

// A request that comes then waits as long as the supervisor does for one that is idle.
TEST_P(LayerLinks, SilentBeforeTheRequest) {
  LayerRig rig(GetParam(), kNever);
  rig.workers.lifecycle.dead_after = kJobLimit;
  rig.load();
  ASSERT_TRUE(rig.step(30, true));
  const auto suspicions = [&] {
    return rig.workers.metrics
        .counter("tessera_worker_suspicions_total", "",
                 {{"worker", "worker:0"}, {"reason", "silent"}})
        .value();
  };
  const std::uint64_t before = suspicions();
  send_signal(rig.pid(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return suspicions() > before; }));
  const auto begin = Clock::now();
  expect_lost(rig.step(1, true), begin);
  rig.revive(Fault::stop);
  rig.expect_recovery();
}

std::uint64_t failed_starts(LayerRig& rig) {
  return rig.workers.metrics
      .counter("tessera_worker_deaths_total", "",
               {{"worker", "worker:0"}, {"reason", "start_failed"}})
      .value();
}

// One that dies in use, and again, or hangs, while it loads what it held.
class LayerLoads : public ::testing::TestWithParam<std::tuple<Fault, Link>> {};
INSTANTIATE_TEST_SUITE_P(All, LayerLoads,
                         ::testing::Combine(::testing::Values(Fault::kill, Fault::stop),
                                            ::testing::ValuesIn(kLinks)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", fault_word(std::get<0>(info.param)),
                                              link_name(std::get<1>(info.param)));
                         });

TEST_P(LayerLoads, FaultWhileItLoadsAgain) {
  const auto [fault, link] = GetParam();
  const LoadGate gate;
  LayerRig rig(link);
  rig.workers.words = {"worker", gate.mode()};
  rig.workers.binary = FAKE_WORKER;
  rig.workers.lifecycle.loading_silence = kJobLimit;
  rig.load();
  ASSERT_TRUE(rig.run(false));
  const int first = rig.pid();
  gate.close();
  send_signal(first, SIGKILL);
  EXPECT_FALSE(rig.step(1, true).ok());
  rig.revive(Fault::kill);
  ASSERT_TRUE(eventually([&] { return rig.pid() != 0 && rig.pid() != first; }));
  std::this_thread::sleep_for(100ms);
  send_signal(rig.pid(), fault == Fault::kill ? SIGKILL : SIGSTOP);
  // One that is stopped goes on after it was given up, if at all.
  EXPECT_TRUE(eventually([&] { return failed_starts(rig) > 0; }));
  rig.revive(fault);
  gate.open();
  rig.expect_recovery();
}

// Several workers, one of which dies: the others keep what they loaded and go on.
TEST(LayerFault, OneOfSeveral) {
  LayerRig rig(Link::shared);
  rig.load("WLWL");
  ASSERT_TRUE(rig.run(true));
  const std::vector<int> before = child_processes();
  ASSERT_EQ(before.size(), 2u);
  send_signal(before.front(), SIGKILL);
  const auto lost = Clock::now();
  expect_lost(rig.run(true), lost);
  rig.expect_recovery();
  const std::vector<int> after = child_processes();
  EXPECT_NE(std::find(after.begin(), after.end(), before.back()), after.end());
}

// A worker that died while nothing ran costs no request.
TEST(LayerFault, WhileIdle) {
  LayerRig rig(Link::shared);
  rig.load();
  send_signal(rig.pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return !rig.runner->pipeline().ready().ok(); }));
  rig.expect_recovery();
  EXPECT_TRUE(rig.run(false));
}

// What its layers do with experts away is counted here, over its deaths.
TEST(LayerFault, CountsOfExpertsSurviveTheWorker) {
  LayerRig rig(Link::shared);
  rig.options.expert_resident = 50.0;
  MetricsRegistry registry;
  ExpertMetrics here(registry);
  rig.options.device.experts.metrics = &here;
  rig.load();
  ASSERT_FALSE(rig.runner->plan().shards.back().layout.experts.empty());
  const auto pairs = [](const ExpertMetrics& metrics) {
    return metrics.pairs_resident.value() + metrics.host.pairs.value();
  };
  const ExpertMetrics& there = rig.workers.experts;
  // Every layer routes as many pairs.
  const auto layers = [&](std::size_t shard) {
    const ShardLayout& layout = rig.runner->plan().shards[shard].layout;
    return static_cast<std::uint64_t>(layout.end_layer - layout.first_layer);
  };
  const auto in_step = [&] { return pairs(there) * layers(0) == pairs(here) * layers(1); };
  // A prompt, and tokens one by one, which are held against what the placement reckoned.
  const auto ask = [&] {
    (void)rig.runner->logits(question(), 64);
    for (std::size_t i = 0; i < 8; ++i) (void)rig.runner->logits(question().subspan(i, 1), 64);
  };
  const auto reckoned = [&] {
    const ExpertMetrics::Executor& host = there.host;
    return kHostCost.us(host.row_calls.value(), host.row_bytes.value());
  };
  ask();
  ASSERT_GT(pairs(here), 0u);
  ASSERT_TRUE(in_step()) << pairs(there) << " of " << pairs(here);  // with the results
  EXPECT_GT(there.host.calls.value(), 0u);
  EXPECT_GT(there.mixed_layers.value(), 0u);
  EXPECT_GT(there.host.row_calls.value(), 0u);
  EXPECT_NEAR(static_cast<double>(there.host.predicted_us.value()), static_cast<double>(reckoned()),
              16.0)
      << "but for what each result rounds down";
  EXPECT_GT(there.host.taken_us.value(), 0u);
  send_signal(rig.pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return !rig.runner->pipeline().ready().ok(); }));
  const std::uint64_t before = pairs(there), predicted = there.host.predicted_us.value();
  ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().restart().ok(); }));
  ask();
  ASSERT_TRUE(in_step()) << pairs(there) << " of " << pairs(here);
  EXPECT_EQ(pairs(there), 2 * before);
  EXPECT_EQ(there.host.predicted_us.value(), 2 * predicted);
}

// One that dies again and again is not started for ever; what is lost says so at once.
TEST(LayerFault, TooManyDeathsAreTheEnd) {
  LayerRig rig(Link::shared);
  rig.workers.lifecycle.most_restarts = worker::kMostRestarts;
  rig.load();
  for (int death = 0; death <= worker::kMostRestarts; ++death) {
    ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().restart().ok(); })) << death;
    send_signal(rig.pid(), SIGKILL);
    ASSERT_TRUE(eventually([&] { return !rig.runner->pipeline().ready().ok(); }));
  }
  ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().absence() == Absence::failed; }));
  const auto begin = Clock::now();
  const Status status = rig.runner->pipeline().restart();
  EXPECT_LT(Clock::now() - begin, kBearable);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  EXPECT_NE(status.error().message.find("worker:0 is away (failed, 3 restarts)"), std::string::npos)
      << status.error().message;
  EXPECT_TRUE(child_processes().empty());
}

// One that somebody else starts again comes back after any time.
TEST(LayerFault, OneAtAnAddressComesBackAfterAll) {
  LayerRig rig(Link::tcp);
  rig.workers.lifecycle.most_restarts = worker::kMostRestarts;
  rig.workers.lifecycle.reappears = true;
  rig.load();
  rig.workers.listening->end();
  ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().absence() == Absence::failed; }));
  EXPECT_FALSE(rig.runner->pipeline().restart().ok());
  rig.workers.listening->start();
  rig.expect_recovery();
  EXPECT_EQ(rig.runner->pipeline().absence(), Absence::none);
}

std::uint64_t jobs_of(LayerRig& rig) {
  return rig.workers.metrics.counter("tessera_worker_jobs_total", "", {{"worker", "worker:0"}})
      .value();
}

// Whose layers this process computes while the worker is away.
void load_with_stand_in(LayerRig& rig) {
  rig.workers.lifecycle.most_restarts = worker::kMostRestarts;
  rig.workers.lifecycle.reappears = rig.link == Link::tcp;
  rig.prepare();
  RunnerOptions options = on_topology(model_path(), "LW", rig.options, rig.workers);
  options.remote = [remote = options.remote, device = options.device,
                    &metrics = rig.workers.metrics](const Model& model, const Plan& plan) {
    return [made = remote(model, plan), device,
            &metrics](const ShardPlan& shard) -> Result<std::unique_ptr<Shard>> {
      TESSERA_ASSIGN(std::unique_ptr<Shard> worker, made(shard));
      Plan here;
      here.shards.push_back(shard);
      here.shards[0].remote = false;
      const auto open = [here, device]() -> Result<std::unique_ptr<Shard>> {
        TESSERA_ASSIGN(auto shards, open_shards(here, device));
        return std::move(shards.front());
      };
      return std::unique_ptr<Shard>(
          std::make_unique<StandInShard>(std::move(worker),
                                         StandInParts{.worker = shard.device,
                                                      .device = "cpu",
                                                      .layers = "some",
                                                      .bytes = 1,
                                                      .room = std::make_shared<HostRoom>(1),
                                                      .open = open},
                                         metrics));
    };
  };
  rig.runner = std::make_unique<ModelRunner>(model_path(), options);
  ASSERT_TRUE(rig.runner->ready());
  rig.sequence = rig.runner->start(400);
}

bool is_stood_in_for(LayerRig& rig) {
  const std::vector<std::string> away = rig.runner->pipeline().away();
  return away.size() == 1 && away[0].ends_with("; cpu computes its layers");
}

TEST(LayerFault, OneThatDiesTooOftenIsStoodInFor) {
  const ModelSpec spec = Model::open(model_path())->spec();
  RoutingCounts counts(spec);
  LayerRig rig(Link::shared);
  rig.options.device.experts.counts = &counts;
  load_with_stand_in(rig);
  for (int death = 0; death <= worker::kMostRestarts; ++death) {
    ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().restart().ok(); })) << death;
    EXPECT_FALSE(is_stood_in_for(rig));
    const int pid = rig.pid();
    send_signal(pid, SIGKILL);
    ASSERT_TRUE(eventually([&] { return rig.pid() != pid; }));
  }
  ASSERT_TRUE(eventually([&] { return is_stood_in_for(rig); }));
  EXPECT_TRUE(rig.runner->pipeline().ready());
  EXPECT_FALSE(rig.step(10, true)) << "its state is lost";
  rig.expect_recovery();
  EXPECT_TRUE(rig.run(false));
  EXPECT_TRUE(is_stood_in_for(rig));
  EXPECT_TRUE(child_processes().empty());
  // What it computes is counted as what a worker does.
  const int last = spec.n_layer() - 1;
  const std::span<const std::uint32_t> chosen = counts.take(last);
  EXPECT_EQ(std::accumulate(chosen.begin(), chosen.end(), std::size_t{0}),
            (question().size() + 25) * static_cast<std::size_t>(counts.n_used(last)));
  EXPECT_EQ(rig.workers.metrics
                .counter("tessera_worker_stand_ins_total", "",
                         {{"worker", "worker:0"}, {"reason", "loaded"}})
                .value(),
            1u);
}

TEST(LayerFault, OneAtAnAddressGetsItsLayersBack) {
  LayerRig rig(Link::tcp);
  load_with_stand_in(rig);
  for (int round = 0; round < 2; ++round) {
    rig.workers.listening->end();
    ASSERT_TRUE(eventually([&] { return is_stood_in_for(rig); }));
    rig.expect_recovery();
    rig.workers.listening->start();
    ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().away().empty(); }));
    EXPECT_TRUE(rig.run(true)) << "what runs goes on here";
    const std::uint64_t jobs = jobs_of(rig);
    rig.expect_recovery();
    EXPECT_GT(jobs_of(rig), jobs);
  }
}

// It is told long before it is given up; nothing is refused meanwhile.
TEST_P(LayerLinks, OneThatDoesNotAnswerIsTold) {
  LayerRig rig(GetParam());
  rig.load();
  ASSERT_TRUE(rig.run(false));
  EXPECT_TRUE(rig.runner->pipeline().away().empty());
  std::atomic<bool> told = false;
  std::thread other([&, pid = rig.pid()] {
    EXPECT_TRUE(eventually([&] {
      send_signal(pid, SIGSTOP);  // again, where something else woke it
      const std::vector<std::string> away = rig.runner->pipeline().away();
      return away.size() == 1 && away[0].starts_with("worker:0 is not answering: a job is ");
    }));
    EXPECT_TRUE(rig.runner->pipeline().ready());
    told = true;
    send_signal(pid, SIGCONT);
  });
  do EXPECT_TRUE(rig.step(1, true));
  while (!told && rig.sequence.position < 380);
  other.join();
  EXPECT_TRUE(rig.runner->pipeline().away().empty());
}

// A prompt's piece is under way, and a job may take longer than anybody wants to wait.
TEST_P(LayerLinks, TheEndDoesNotWaitForAHungWorker) {
  auto begin = Clock::now();
  {
    LayerRig rig(GetParam());
    rig.load();
    ASSERT_TRUE(rig.step(100, false));
    send_signal(rig.pid(), SIGSTOP);
    (void)rig.step(100, false);
    begin = Clock::now();
    rig.sequence = {};
    rig.runner.reset();
    EXPECT_LT(Clock::now() - begin, kBearable);
    if (GetParam() == Link::tcp) send_signal(rig.pid(), SIGCONT);
  }
  EXPECT_TRUE(child_processes().empty());
}

TEST(LayerFault, MayBeStoppedTwice) {
  LayerRig rig(Link::shared);
  rig.load();
  ASSERT_TRUE(rig.step(100, false));
  rig.runner->pipeline().stop();
  rig.runner->pipeline().stop();
}

}  // namespace
}  // namespace tessera::testing
