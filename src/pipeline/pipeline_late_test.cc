// What is still under way when forward() has returned: what it is not waited for, and whose failure
// it is.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "pipeline/pipeline.h"

namespace tessera {
namespace {

constexpr int kLatePieceRows = 128;

// Computes nothing. Its pieces wait to be let through, and some of them fail alone.
class HeldShard final : public Shard {
 public:
  Status load(const Model&, const LoadProgress&) override { return {}; }
  Status prepare(Piece&) override { return {}; }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>& near) override {
    std::unique_lock lock(mutex_);
    const int piece = finished_++;
    if (!moved_.wait_for(lock, std::chrono::seconds(20), [&] { return piece < let_through_; }))
      ADD_FAILURE() << "piece " << piece << " was waited for";
    if (failing_.contains(piece)) return Error::make(ErrorCode::unavailable, "piece {}", piece);
    near();
    return {};
  }
  std::span<const float> logits() override { return {}; }
  bool keeps_state() const override { return true; }

  void let_through(int pieces) {
    const std::lock_guard lock(mutex_);
    let_through_ = pieces;
    moved_.notify_all();
  }
  void fail_at(int piece) {
    const std::lock_guard lock(mutex_);
    failing_.insert(piece);
  }

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  int let_through_ = 0;
  int finished_ = 0;
  std::set<int> failing_;
};

class PipelineLate : public ::testing::Test {
 protected:
  static constexpr int kAll = 1000;

  PipelineLate() {
    static const Result<Model> model =
        Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
    EXPECT_TRUE(model.ok());
    Plan plan;
    plan.piece_rows = kLatePieceRows;
    plan.shards.resize(2);
    plan.shards.back().layout.max_logit_rows = 4;
    std::vector<std::unique_ptr<Shard>> shards;
    for (HeldShard** shard : {&first, &second}) {
      auto made = std::make_unique<HeldShard>();
      *shard = made.get();
      shards.push_back(std::move(made));
    }
    first->let_through(kAll);
    auto loaded = Pipeline::load(*model, plan, std::move(shards), {});
    EXPECT_TRUE(loaded.ok());
    pipeline = std::move(*loaded);
  }
  ~PipelineLate() override { second->let_through(kAll); }

  struct Rows {
    int slot = 0;
    int rows = 0;
    bool choice = false;  // of the token after the last one
  };
  Status forward(std::vector<Rows> parts) {
    std::vector<SequenceRows> sequences;
    std::vector<std::int32_t> logit_rows;
    int rows = 0;
    for (const Rows& part : parts) {
      sequences.push_back({.first_row = rows, .n_rows = part.rows, .slot = part.slot});
      rows += part.rows;
      if (part.choice) logit_rows.push_back(rows - 1);
    }
    const std::vector<TokenId> tokens(static_cast<std::size_t>(rows));
    const std::vector<TokenChoice> choices(logit_rows.size());
    return pipeline->forward({.tokens = tokens,
                              .sequences = sequences,
                              .logit_rows = logit_rows,
                              .choices = {.rows = choices}});
  }
  const Error* why(int slot) {
    spoilt = pipeline->spoilt();
    return spoilt.find(slot);
  }

  HeldShard* first = nullptr;
  HeldShard* second = nullptr;
  std::unique_ptr<Pipeline> pipeline;
  SpoiltSlots spoilt;
};

TEST_F(PipelineLate, APromptBehindSampledRowsIsNotWaitedFor) {
  second->let_through(1);
  ASSERT_TRUE(
      forward({{.slot = 0, .rows = 1, .choice = true}, {.slot = 1, .rows = 2 * kLatePieceRows}}));
  EXPECT_EQ(pipeline->chosen().size(), 1u);
  second->let_through(kAll);
  EXPECT_TRUE(pipeline->finish());
}

TEST_F(PipelineLate, AFailureIsToldByTheNextBatchOfItsSequence) {
  second->fail_at(0);
  ASSERT_TRUE(forward({{.slot = 1, .rows = kLatePieceRows}}));
  EXPECT_EQ(why(1), nullptr) << "nobody knows yet";
  second->let_through(kAll);
  EXPECT_EQ(pipeline->finish().error().message, "piece 0");
  EXPECT_TRUE(forward({{.slot = 0, .rows = 1, .choice = true}}));
  EXPECT_EQ(why(0), nullptr);
  EXPECT_EQ(why(1)->message, "piece 0");
  const Status failed =
      forward({{.slot = 0, .rows = 1, .choice = true}, {.slot = 1, .rows = kLatePieceRows}});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "piece 0");
  EXPECT_TRUE(pipeline->keeps_state());
  EXPECT_EQ(pipeline->chosen().size(), 1u) << "of the other sequence";
  pipeline->reset_slot(1);
  EXPECT_EQ(why(1), nullptr);
  EXPECT_TRUE(forward({{.slot = 1, .rows = 1, .choice = true}}));
  EXPECT_TRUE(pipeline->finish());
}

TEST_F(PipelineLate, ATokenIsTakenFromNoSequenceThatFailedBefore) {
  second->let_through(kAll);
  second->fail_at(1);
  EXPECT_FALSE(forward({{.slot = 1, .rows = 3 * kLatePieceRows, .choice = true}}));
  EXPECT_EQ(why(1)->message, "piece 1");
}

// Of a sequence that was given up, whose slot has another one when its failure is known.
TEST_F(PipelineLate, AFailureIsNotThatOfTheNextOwnerOfItsSlot) {
  second->fail_at(0);
  ASSERT_TRUE(forward({{.slot = 1, .rows = 1}, {.slot = 3, .rows = 1}}));
  pipeline->reset_slot(1);
  second->let_through(1);
  while (why(3) == nullptr) std::this_thread::yield();
  EXPECT_EQ(why(1), nullptr) << "its reset goes with the next batch";
  ASSERT_TRUE(forward({{.slot = 1, .rows = 1}}));
  EXPECT_EQ(why(1), nullptr) << "its reset is under way";
  second->let_through(kAll);
  EXPECT_FALSE(pipeline->finish());
  EXPECT_EQ(why(1), nullptr);
  EXPECT_NE(why(3), nullptr);
}

TEST_F(PipelineLate, ACopyOfASpoiltSequenceIsSpoilt) {
  second->fail_at(0);
  ASSERT_TRUE(forward({{.slot = 1, .rows = 1}}));
  pipeline->copy_slot({.from = 1, .to = 2});
  pipeline->reset_slot(1);
  second->let_through(kAll);
  EXPECT_FALSE(forward({{.slot = 2, .rows = 1, .choice = true}}));
  EXPECT_EQ(why(1), nullptr);
  EXPECT_EQ(why(2)->message, "piece 0");
}

}  // namespace
}  // namespace tessera
