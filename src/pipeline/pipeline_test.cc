#include "pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tessera {
namespace {

constexpr int kPieceRows = 128;

// Counts its pieces and computes nothing; one of them fails.
class CountingShard final : public Shard {
 public:
  explicit CountingShard(bool elsewhere = false) : is_elsewhere(elsewhere) {}
  Status load(const Model&, const LoadProgress&) override { return {}; }
  Status prepare(Piece&) override {
    ++prepared;
    return {};
  }
  Status start(Piece&) override {
    ++started;
    by = std::this_thread::get_id();
    return {};
  }
  Status finish(Piece&, const std::function<void()>& near) override {
    if (finished++ == fails_at) return Error::make(ErrorCode::unavailable, "lost");
    near();
    return {};
  }
  std::span<const float> logits() override { return {}; }
  bool elsewhere() const override { return is_elsewhere; }
  void give_up() override {
    if (ending != nullptr) ++*ending;
  }
  ~CountingShard() override {
    if (ending != nullptr) {
      EXPECT_EQ(*ending, 2) << "not all were told before one was waited for";
    }
  }

  int fails_at = -1;      // this piece
  int* ending = nullptr;  // shards that were told to end
  int prepared = 0;
  int started = 0;
  int finished = 0;
  std::thread::id by;  // who drove it last
  bool is_elsewhere;
};

struct CountingRig {
  explicit CountingRig(int fails_at = -1, bool second_elsewhere = false, int n_shards = 2) {
    static const Result<Model> model =
        Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
    EXPECT_TRUE(model.ok());
    Plan plan;
    plan.piece_rows = kPieceRows;
    plan.shards.resize(static_cast<std::size_t>(n_shards));
    auto shards = std::vector<std::unique_ptr<Shard>>();
    shards.push_back(std::make_unique<CountingShard>());
    shards.push_back(std::make_unique<CountingShard>(second_elsewhere));
    if (n_shards == 3) shards.push_back(std::make_unique<CountingShard>(true));
    last = static_cast<CountingShard*>(shards.back().get());
    first = static_cast<CountingShard*>(shards[0].get());
    second = static_cast<CountingShard*>(shards[1].get());
    first->fails_at = fails_at;
    auto loaded = Pipeline::load(*model, plan, std::move(shards), {});
    EXPECT_TRUE(loaded.ok());
    pipeline = std::move(*loaded);
  }
  // One sequence's rows, with the logits of the last one or without.
  Status forward(int rows, bool logits = false) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(rows));
    const SequenceRows sequence{.n_rows = rows};
    const std::int32_t last = rows - 1;
    return pipeline->forward({.tokens = tokens,
                              .sequences = {&sequence, 1},
                              .logit_rows = {&last, logits ? std::size_t{1} : 0}});
  }

  CountingShard* first = nullptr;
  CountingShard* second = nullptr;
  CountingShard* last = nullptr;
  std::unique_ptr<Pipeline> pipeline;
};

TEST(Pipeline, LeavesNothingUnderWayWhenItStops) {
  CountingRig rig;
  ASSERT_TRUE(rig.forward(3 * kPieceRows));
  rig.pipeline->stop();
  rig.pipeline->stop();
  EXPECT_TRUE(rig.pipeline->finish());
  EXPECT_EQ(rig.first->finished, 3);
  EXPECT_EQ(rig.second->finished, 3);
  EXPECT_FALSE(rig.forward(kPieceRows));
}

// Also where no batch follows it and nobody asks for logits.
TEST(Pipeline, TellsTheLastFailureOfTheLastShard) {
  CountingRig rig;
  rig.second->fails_at = 3;
  ASSERT_TRUE(rig.forward(kPieceRows));
  EXPECT_TRUE(rig.pipeline->finish());
  (void)rig.forward(3 * kPieceRows);
  EXPECT_FALSE(rig.pipeline->finish());
}

TEST(Pipeline, TellsAllShardsToEndBeforeItWaitsForOne) {
  int ending = 0;
  CountingRig rig;
  rig.first->ending = rig.second->ending = &ending;
  rig.pipeline.reset();
  EXPECT_EQ(ending, 2);
}

TEST(Pipeline, TellsAFailureOfTheFirstShardOnceItsPiecesAreDone) {
  CountingRig rig(3);
  (void)rig.forward(4 * kPieceRows);  // may end before the piece is looked at
  EXPECT_FALSE(rig.pipeline->finish());
  EXPECT_FALSE(rig.forward(kPieceRows));
  EXPECT_FALSE(rig.pipeline->keeps_state());
  EXPECT_EQ(rig.first->started, rig.first->finished);
  ASSERT_TRUE(rig.pipeline->restart());
  ASSERT_TRUE(rig.forward(kPieceRows));
}

TEST(Pipeline, OneThreadTakesAPieceThroughShardsThatComputeElsewhere) {
  CountingRig rig(-1, true);
  ASSERT_TRUE(rig.forward(1, true));
  EXPECT_EQ(rig.second->by, std::this_thread::get_id());
  EXPECT_EQ(rig.second->prepared, 1);              // once, when the first was near its end
  ASSERT_TRUE(rig.forward(3 * kPieceRows, true));  // more pieces may overlap
  EXPECT_NE(rig.second->by, std::this_thread::get_id());
  ASSERT_TRUE(rig.forward(1, true));
  EXPECT_EQ(rig.second->by, std::this_thread::get_id());
  EXPECT_EQ(rig.second->prepared, 5);
  EXPECT_EQ(rig.second->finished, 5);
  CountingRig here;
  ASSERT_TRUE(here.forward(1, true));
  EXPECT_NE(here.second->by, std::this_thread::get_id());
}

// Nothing of the one before is under way in the second shard when it is driven by this thread.
TEST(Pipeline, APieceKeepsItsPlaceAmongThoseThatAreUnderWay) {
  CountingRig rig(-1, true);
  for (int i = 1; i <= 200; ++i) {
    ASSERT_TRUE(rig.forward(kPieceRows));
    ASSERT_TRUE(rig.forward(1, true));
    ASSERT_EQ(rig.second->finished, 2 * i);
  }
}

// Which returned before that was known.
TEST(Pipeline, APieceFailsWhereOneBeforeItDid) {
  CountingRig rig(0, true);
  (void)rig.forward(kPieceRows);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // until nothing is under way
  EXPECT_FALSE(rig.forward(1, true));
  EXPECT_FALSE(rig.pipeline->keeps_state());
}

TEST(Pipeline, TellsEveryShardOfAPieceThatFailed) {
  CountingRig rig(0, true);
  EXPECT_FALSE(rig.forward(1, true));
  EXPECT_FALSE(rig.pipeline->keeps_state());
  EXPECT_EQ(rig.second->prepared, 1);
  EXPECT_EQ(rig.second->started, 0);
  EXPECT_FALSE(rig.forward(1, true));
  EXPECT_EQ(rig.second->prepared, 1);  // nothing is computed until restart()
  ASSERT_TRUE(rig.pipeline->restart());
  EXPECT_TRUE(rig.forward(1, true));
  EXPECT_EQ(rig.second->finished, 1);
}

// Of three shards, that a piece fails at any of them, alone or under way with others.
TEST(Pipeline, ThreeShardsGoOnAfterAFailureOfAny) {
  for (const bool elsewhere : {false, true})
    for (int failing = 0; failing < 3; ++failing) {
      SCOPED_TRACE(fmt::format("elsewhere {}, shard {}", elsewhere, failing));
      CountingRig rig(-1, elsewhere, 3);
      CountingShard* const shards[] = {rig.first, rig.second, rig.last};
      ASSERT_TRUE(rig.forward(4 * kPieceRows, true));
      ASSERT_TRUE(rig.forward(1, true));
      const bool alone = elsewhere;  // then one thread takes a piece through all
      EXPECT_EQ(rig.last->by == std::this_thread::get_id(), alone);
      for (const CountingShard* shard : shards) EXPECT_EQ(shard->finished, 5);
      for (const int rows : {4 * kPieceRows, 1}) {
        CountingShard& bad = *shards[failing];
        bad.fails_at = bad.finished;
        EXPECT_FALSE(rig.forward(rows, true));
        EXPECT_FALSE(rig.forward(1, true));
        ASSERT_TRUE(rig.pipeline->restart());
        for (const CountingShard* shard : shards) EXPECT_EQ(shard->started, shard->finished);
        ASSERT_TRUE(rig.forward(2 * kPieceRows));
        ASSERT_TRUE(rig.forward(1, true));
      }
      EXPECT_EQ(rig.first->prepared, rig.second->prepared);
      EXPECT_EQ(rig.second->prepared, rig.last->prepared) << "each is told of every piece";
    }
}

// A shard that is elsewhere may come to be here, and the other way round.
TEST(Pipeline, LooksAtARestartWhichShardsAreElsewhere) {
  CountingRig rig(-1, true);
  ASSERT_TRUE(rig.forward(1, true));
  EXPECT_EQ(rig.second->by, std::this_thread::get_id());
  rig.second->is_elsewhere = false;
  ASSERT_TRUE(rig.pipeline->restart());
  ASSERT_TRUE(rig.forward(1, true));
  EXPECT_NE(rig.second->by, std::this_thread::get_id());
}

}  // namespace
}  // namespace tessera
