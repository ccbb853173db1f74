// Who stands in for a worker is chosen by what the layers take here, with the threads that compute
// them then, and not by what they took there.
#include "cli/stand_ins.h"

#include <gtest/gtest.h>

#include "cli/current_plan.h"
#include "plan/footprint.h"

namespace tessera::cli {
namespace {

// A worker of which nobody asks anything.
class QuietWorker final : public Shard {
 public:
  Status load(const Model&, const LoadProgress&) override { return {}; }
  Status prepare(Piece&) override { return {}; }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>&) override { return {}; }
  std::span<const float> logits() override { return {}; }
};

class StandInBytes : public ::testing::Test {
 protected:
  static constexpr std::int64_t kConnection = 1 << 16;

  // Layers at a worker behind some here, and threads of both.
  void make(int threads_here, int threads_there) {
    constexpr std::int64_t kPlenty = std::int64_t{32} << 30;
    DeviceInventory device{
        .name = "cpu", .threads = threads_here, .memory_total = kPlenty, .memory_free = kPlenty};
    Inventory inventory{.devices = {device, device}};
    DeviceInventory& worker = inventory.devices[1];
    worker.name = "worker:tcp:there:1";
    worker.remote = true;
    worker.threads = threads_there;
    worker.memory = 1;
    worker.connection = [](const ShardLayout&) {
      return ConnectionBytes{.here = kConnection, .there = kConnection};
    };
    Result<Plan> plan = make_plan(model(), inventory, {.context = 256});
    ASSERT_TRUE(plan) << plan.error().message;
    plan_ = *std::move(plan);
  }
  static const Model& model() {
    static const Model kModel =
        *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
    return kModel;
  }
  std::int64_t bytes_with(int threads) const {
    return cpu_shard_bytes(model(), plan_.shards[1].layout, threads);
  }
  // With so much free here.
  bool stands_in(std::int64_t free_bytes, bool spawned = false) {
    ShardPlan& here = plan_.shards[0];
    here.budget_bytes = here.total_bytes() + here.host_bytes + free_bytes;
    const StandIns stand_ins(model(), plan_, {}, metrics_);
    auto worker = std::make_unique<QuietWorker>();
    const Shard* alone = worker.get();
    return stand_ins.behind(std::move(worker), plan_.shards[1], spawned).get() != alone;
  }

  MetricsRegistry metrics_;
  Plan plan_;
};

TEST_F(StandInBytes, MoreThreadsHereTakeMore) {
  make(16, 1);
  ASSERT_GT(bytes_with(16), bytes_with(1) + kConnection);
  EXPECT_FALSE(stands_in(plan_.shards[1].total_bytes()));
  EXPECT_FALSE(stands_in(bytes_with(16) - 1));
  EXPECT_TRUE(stands_in(bytes_with(16)));
}

// Neither the worker's threads nor its connection are needed here.
TEST_F(StandInBytes, FewerThreadsHereTakeLess) {
  make(1, 16);
  ASSERT_LT(bytes_with(1), plan_.shards[1].total_bytes());
  EXPECT_TRUE(stands_in(bytes_with(1)));
  EXPECT_FALSE(stands_in(bytes_with(1) - 1));
}

// It leaves its memory and its threads.
TEST_F(StandInBytes, ASpawnedWorkerLeavesRoom) {
  make(16, 1);
  EXPECT_TRUE(stands_in(0, /*spawned=*/true));
}

// Speeds were predicted for those who had the layers at the start.
TEST_F(StandInBytes, PropsSayWhetherSpeedsAreOfThoseWhoHaveTheLayers) {
  make(1, 1);
  const auto predicted = [&](const Owners& owners) {
    return current_plan_json(plan_, owners).at("predicted");
  };
  EXPECT_TRUE(predicted(planned_owners(plan_)).is_null()) << "nothing was measured";
  plan_.predicted = Prediction{.shards = {{}, {}}};
  EXPECT_EQ(predicted(planned_owners(plan_)).at("as_planned"), true);
  EXPECT_EQ(predicted({"cpu", "cpu"}).at("as_planned"), false);
  EXPECT_EQ(predicted({"cpu", ""}).at("as_planned"), false);
}

}  // namespace
}  // namespace tessera::cli
