// Who stands in for workers of a plan that do not come back, by the plan's own figures, and what is
// counted of it. How the layers change hands is stand_in_shard_test.cc, with real workers
// tests/worker/layer_faults_test.cc.
#include "cli/stand_ins.h"

#include <gtest/gtest.h>

#include "pipeline/fake_worker_shard.h"
#include "plan/planner_rig.h"

namespace tessera::testing {
namespace {

using cli::StandIns;

bool eventually(const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + std::chrono::seconds(60); !done();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    if (Clock::now() > end) return false;
  return true;
}

const Model& small_model() {
  static const Model kModel = golden("qwen3");
  return kModel;
}

// `here` devices of this process, then `workers` of layers.
Plan split_plan(const Model& model, int here, int workers) {
  Inventory inventory = machine(here + workers);
  for (int i = 0; i < workers; ++i) {
    DeviceInventory& worker = inventory.devices[static_cast<std::size_t>(here + i)];
    worker.name = fmt::format("worker:{}", i);
    worker.remote = true;
  }
  Result<Plan> plan = make_plan(model, inventory, {.context = 256});
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

void set_free(ShardPlan& shard, std::int64_t bytes) {
  shard.budget_bytes = shard.total_bytes() + shard.host_bytes + bytes;
}

// A worker of the plan with whoever stands in for it.
struct Layers {
  Layers(const StandIns& stand_ins, const ShardPlan& plan, bool spawned) {
    auto made = std::make_unique<FakeWorkerShard>();
    worker = made.get();
    shard = stand_ins.behind(std::move(made), plan, spawned);
  }
  bool is_alone() const { return shard.get() == worker; }
  // Until it is known what becomes of them.
  void fail() {
    worker->set_failed(true);
    EXPECT_TRUE(
        eventually([&] { return shard->ready().ok() || shard->absence() == Absence::failed; }));
  }
  void come_back() {
    worker->set_failed(false);
    EXPECT_TRUE(shard->restart());
  }

  FakeWorkerShard* worker = nullptr;
  std::unique_ptr<Shard> shard;
};

std::uint64_t counted(MetricsRegistry& metrics, const std::string& worker, const char* reason) {
  return metrics
      .counter("tessera_worker_stand_ins_total", "", {{"worker", worker}, {"reason", reason}})
      .value();
}

// It leaves the memory that it had, so that nothing else need be free.
TEST(StandIns, OneThatWasStartedHereLeavesItsRoom) {
  Plan plan = split_plan(small_model(), 1, 1);
  set_free(plan.shards[0], 0);
  MetricsRegistry metrics;
  const StandIns stand_ins(small_model(), plan, {}, metrics);
  Layers layers(stand_ins, plan.shards[1], /*spawned=*/true);
  ASSERT_TRUE(layers.shard->load(small_model(), {}));
  for (std::uint64_t round = 1; round <= 2; ++round) {
    layers.fail();
    EXPECT_EQ(layers.shard->stand_in(), "cpu");
    EXPECT_EQ(counted(metrics, "worker:0", "loaded"), round);
    EXPECT_EQ(counted(metrics, "worker:0", "given_back"), round - 1);
    ASSERT_TRUE(layers.shard->restart());
    EXPECT_FALSE(layers.shard->elsewhere());
    layers.come_back();
    EXPECT_TRUE(layers.shard->elsewhere());
    EXPECT_EQ(counted(metrics, "worker:0", "given_back"), round);
  }
  EXPECT_EQ(counted(metrics, "worker:0", "failed"), 0u);
  EXPECT_EQ(counted(metrics, "worker:0", "no_room"), 0u);
}

// As the worker would, for a profile of all layers.
TEST(StandIns, CountTheRouting) {
  const Model model = golden("qwen35moe");
  const Plan plan = split_plan(model, 1, 1);
  const ShardLayout& layout = plan.shards[1].layout;
  RoutingCounts counts(model.spec());
  MetricsRegistry metrics;
  const StandIns stand_ins(model, plan, {.experts = {.counts = &counts}}, metrics);
  Layers layers(stand_ins, plan.shards[1], /*spawned=*/true);
  ASSERT_TRUE(layers.shard->load(model, {}));
  layers.fail();
  ASSERT_TRUE(layers.shard->restart());
  const TokenId token = 1;
  const std::int32_t page = 0;
  const std::vector<std::span<const std::int32_t>> tables(layout.kv_pages.size(), {&page, 1});
  const SequenceRows rows{.n_rows = 1, .pages = tables};
  Piece piece;
  piece.allocate({.max_rows = 1, .n_embd = model.spec().n_embd});
  piece.take({.tokens = {&token, 1}, .sequences = {&rows, 1}}, {0, 1});
  piece.changes.push_back({.kind = StateChange::Kind::reset_slot});
  std::fill(piece.hidden().begin(), piece.hidden().end(), 0.01f);
  ASSERT_TRUE(layers.shard->prepare(piece));
  ASSERT_TRUE(layers.shard->start(piece));
  ASSERT_TRUE(layers.shard->finish(piece, [] {}));
  for (int layer = layout.first_layer; layer < layout.end_layer; ++layer) {
    const std::span<const std::uint32_t> chosen = counts.take(layer);
    EXPECT_EQ(std::count(chosen.begin(), chosen.end(), 1u), counts.n_used(layer)) << layer;
  }
}

TEST(StandIns, TheDeviceWithTheMostRoomTakesThoseOfOneElsewhere) {
  Plan plan = split_plan(small_model(), 2, 1);
  const std::int64_t bytes = plan.shards[2].total_bytes();
  set_free(plan.shards[0], bytes - 1);
  set_free(plan.shards[1], bytes);
  MetricsRegistry metrics;
  const StandIns stand_ins(small_model(), plan, {}, metrics);
  Layers layers(stand_ins, plan.shards[2], /*spawned=*/false);
  ASSERT_TRUE(layers.shard->load(small_model(), {}));
  layers.fail();
  EXPECT_EQ(layers.shard->stand_in(), "cpu:1");
  EXPECT_EQ(counted(metrics, "worker:0", "loaded"), 1u);
}

TEST(StandIns, NobodyDoesWithoutRoomOrForAGpu) {
  Plan plan = split_plan(small_model(), 1, 1);
  MetricsRegistry metrics;
  set_free(plan.shards[0], plan.shards[1].total_bytes() - 1);
  EXPECT_TRUE(Layers(StandIns(small_model(), plan, {}, metrics), plan.shards[1], false).is_alone());
  set_free(plan.shards[0], plan.shards[1].total_bytes());
  EXPECT_FALSE(
      Layers(StandIns(small_model(), plan, {}, metrics), plan.shards[1], false).is_alone());
  plan.shards[1].kind = DeviceKind::cuda;
  EXPECT_TRUE(Layers(StandIns(small_model(), plan, {}, metrics), plan.shards[1], false).is_alone());
  EXPECT_TRUE(Layers(StandIns(small_model(), plan, {}, metrics), plan.shards[1], true).is_alone());
}

// Room for one of two: who fails first has it, until its worker is back.
TEST(StandIns, RoomIsGivenOnce) {
  Plan plan = split_plan(small_model(), 1, 2);
  set_free(plan.shards[0], std::max(plan.shards[1].total_bytes(), plan.shards[2].total_bytes()));
  MetricsRegistry metrics;
  const StandIns stand_ins(small_model(), plan, {}, metrics);
  Layers first(stand_ins, plan.shards[1], false), second(stand_ins, plan.shards[2], false);
  ASSERT_FALSE(first.is_alone() || second.is_alone());
  for (Layers* layers : {&first, &second}) ASSERT_TRUE(layers->shard->load(small_model(), {}));
  first.fail();
  second.fail();
  EXPECT_EQ(first.shard->stand_in(), "cpu:0");
  EXPECT_EQ(second.shard->stand_in(), "");
  EXPECT_EQ(second.shard->absence(), Absence::failed);
  EXPECT_EQ(counted(metrics, "worker:1", "no_room"), 1u);
  first.come_back();
  second.come_back();
  second.fail();
  EXPECT_EQ(second.shard->stand_in(), "cpu:0");
  EXPECT_EQ(counted(metrics, "worker:1", "loaded"), 1u);
}

TEST(StandIns, WhatCannotBeLoadedIsCounted) {
  const Plan plan = split_plan(small_model(), 1, 1);
  MetricsRegistry metrics;
  const StandIns stand_ins(small_model(), plan, {.cpu_isa = "none"}, metrics);
  Layers layers(stand_ins, plan.shards[1], true);
  ASSERT_TRUE(layers.shard->load(small_model(), {}));
  layers.fail();
  EXPECT_EQ(layers.shard->absence(), Absence::failed);
  EXPECT_EQ(counted(metrics, "worker:0", "failed"), 1u);
  EXPECT_EQ(counted(metrics, "worker:0", "loaded"), 0u);
}

// Gigabytes, which nobody waits for at the end.
TEST(StandIns, ALoadIsBrokenOffAtTheEnd) {
  const Model model = synthetic(
      {.family = "qwen35moe", .preset = "full", .overrides = {"block_count=16"}, .hollow = true});
  const Plan plan = split_plan(model, 1, 1);
  MetricsRegistry metrics;
  {
    const StandIns stand_ins(model, plan, {}, metrics);
    Layers layers(stand_ins, plan.shards[1], true);
    ASSERT_TRUE(layers.shard->load(model, {}));
    layers.worker->set_failed(true);
    ASSERT_TRUE(eventually([&] {
      const std::vector<std::string> away = layers.shard->away();
      return !away.empty() && away.back().ends_with("cpu loads its layers");
    }));
  }
  for (const char* reason : {"loaded", "failed", "no_room"})
    EXPECT_EQ(counted(metrics, "worker:0", reason), 0u) << reason;
}

}  // namespace
}  // namespace tessera::testing
