#include "pipeline/stand_in_shard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "pipeline/fake_worker_shard.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

bool eventually(const std::function<bool()>& done) {
  for (const auto end = Clock::now() + std::chrono::seconds(60); !done();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    if (Clock::now() > end) return false;
  return true;
}

// The same layers here.
class FakeLayers final : public Shard {
 public:
  using Load = std::function<Status(const LoadProgress&)>;
  explicit FakeLayers(Load load) : load_(std::move(load)) {}
  Status load(const Model&, const LoadProgress& wanted) override { return load_(wanted); }
  Status prepare(Piece&) override { return {}; }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>&) override { return {}; }
  std::span<const float> logits() override { return {&mark, 1}; }

  float mark = 2;

 private:
  Load load_;
};

struct StandInRig {
  static constexpr std::int64_t kBytes = 100;

  explicit StandInRig(std::int64_t free = kBytes) : room(std::make_shared<HostRoom>(free)) {
    auto made = std::make_unique<FakeWorkerShard>();
    worker = made.get();
    shard = std::make_unique<StandInShard>(
        std::move(made),
        StandInParts{.worker = "worker:0",
                     .device = "cpu",
                     .layers = "2-3",
                     .bytes = kBytes,
                     .room = room,
                     .open = [this]() -> Result<std::unique_ptr<Shard>> {
                       ++opened;
                       return std::unique_ptr<Shard>(
                           new FakeLayers([this](const LoadProgress& wanted) {
                             while (held) {
                               if (!wanted(0, kBytes)) return Status(load_cancelled());
                               std::this_thread::yield();
                             }
                             if (no_memory) throw std::bad_alloc();
                             return load;
                           }));
                     }},
        metrics);
    EXPECT_TRUE(shard->load(model(), {}));
  }
  static const Model& model() {
    static const Result<Model> model =
        Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
    return *model;
  }
  bool is_here() { return shard->logits().front() == 2; }
  std::uint64_t counted(const char* reason) {
    return metrics
        .counter("tessera_worker_stand_ins_total", "", {{"worker", "worker:0"}, {"reason", reason}})
        .value();
  }

  MetricsRegistry metrics;

  std::shared_ptr<HostRoom> room;
  std::atomic<int> opened = 0;
  std::atomic<bool> held = false;
  bool no_memory = false;
  Status load;
  FakeWorkerShard* worker = nullptr;
  std::unique_ptr<StandInShard> shard;
};

TEST(StandInShard, TakesTheLayersAndGivesThemBack) {
  StandInRig rig;
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(rig.shard->restart());
    EXPECT_FALSE(rig.is_here());
    EXPECT_FALSE(rig.shard->restart_due());
    EXPECT_EQ(rig.shard->stand_in(), "");
    EXPECT_TRUE(rig.shard->elsewhere());
    rig.held = true;
    rig.worker->set_failed(true);
    ASSERT_TRUE(eventually([&] { return rig.opened == round; }));
    EXPECT_FALSE(rig.shard->ready());
    EXPECT_EQ(rig.shard->absence(), Absence::lost) << "it is expected back";
    EXPECT_EQ(rig.shard->away().front(), "worker:0 is away (failed); cpu loads its layers");
    EXPECT_FALSE(rig.shard->restart());
    EXPECT_EQ(rig.shard->stand_in(), "");
    rig.held = false;
    ASSERT_TRUE(eventually([&] { return rig.shard->ready().ok(); }));
    EXPECT_EQ(rig.shard->stand_in(), "cpu");
    EXPECT_FALSE(rig.is_here()) << "not while a sequence may be alive";
    EXPECT_EQ(rig.shard->away().front(), "worker:0 is away (failed); cpu computes its layers");
    ASSERT_TRUE(rig.shard->restart());
    EXPECT_TRUE(rig.is_here());
    EXPECT_FALSE(rig.shard->elsewhere());
    EXPECT_FALSE(rig.shard->restart_due());
    EXPECT_FALSE(rig.room->take(1));
    rig.worker->set_failed(false);
    EXPECT_TRUE(rig.is_here());
    EXPECT_TRUE(rig.shard->restart_due());
    EXPECT_EQ(rig.shard->stand_in(), "cpu") << "until nothing runs";
    EXPECT_TRUE(rig.shard->away().empty());
  }
  ASSERT_TRUE(rig.shard->restart());
  EXPECT_EQ(rig.shard->stand_in(), "");
  EXPECT_TRUE(rig.room->take(StandInRig::kBytes));
  EXPECT_EQ(rig.counted("loaded"), 3u);
  EXPECT_EQ(rig.counted("given_back"), 3u);
}

TEST(StandInShard, StaysAsItIsWhereThereIsNoRoomOrNoWay) {
  StandInRig full(StandInRig::kBytes - 1), broken, starved;
  broken.load = Error::make(ErrorCode::io, "no such file");
  starved.no_memory = true;
  for (StandInRig* rig : {&full, &broken, &starved}) {
    rig->worker->set_failed(true);
    ASSERT_TRUE(eventually([&] { return rig->shard->absence() == Absence::failed; }));
    EXPECT_FALSE(rig->shard->ready());
    EXPECT_EQ(rig->shard->away().front(), "worker:0 is away (failed)");
    EXPECT_FALSE(rig->shard->restart());
    EXPECT_FALSE(rig->is_here());
    rig->worker->set_failed(false);
    EXPECT_TRUE(rig->shard->restart());
  }
  EXPECT_EQ(full.opened, 0);
  EXPECT_TRUE(full.room->take(StandInRig::kBytes - 1));
  EXPECT_TRUE(broken.room->take(StandInRig::kBytes));
  EXPECT_EQ(full.counted("no_room"), 1u);
  EXPECT_EQ(broken.counted("failed"), 1u);
  EXPECT_EQ(starved.counted("failed"), 1u);
}

TEST(StandInShard, EndsAtAnyTime) {
  const StandInRig there;
  StandInRig loading;
  loading.held = true;  // for ever
  loading.worker->set_failed(true);
  ASSERT_TRUE(eventually([&] { return loading.opened == 1; }));
  StandInRig loaded;
  loaded.worker->set_failed(true);
  ASSERT_TRUE(eventually([&] { return loaded.shard->ready().ok(); }));
  ASSERT_TRUE(loaded.shard->restart());
}

}  // namespace
}  // namespace tessera
