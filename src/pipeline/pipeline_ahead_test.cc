// Batches that are begun over a chain of devices before the tokens of the ones ahead are read: what
// each device is told, in which order, and who is waited for, also when one is lost.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "pipeline/pipeline.h"

namespace tessera {
namespace {

// A row is the number of its token, to which each layer adds its own number; the token chosen is
// what that has come to. Everything is done when it is called for; what may wait is written down.
class ChainDevice final : public Device {
 public:
  struct Chain {
    std::vector<std::string> calls;  // that wait, or would have to come in turn
    bool links = true;
  };
  ChainDevice(int number, Chain& chain) : number_(number), chain_(chain) {}

  std::string name() const override { return fmt::format("gpu:{}", number_); }
  Status load(const Model&, const ShardLayout&, const LoadProgress&) override { return {}; }

  void begin(const BatchView& batch) override {
    tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    hidden_.assign(tokens_.size(), -1);
    last_ = nullptr;
    chooses_ = !batch.choices.empty();
  }
  bool may_begin(const BatchView& batch) override { return batch.rows() < 3; }
  void take_tokens(const Device& last) override {
    last_ = static_cast<const ChainDevice*>(&last);
    note("tokens");
  }
  void embed() override {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const bool known = tokens_[i] >= 0;
      ASSERT_TRUE(known || last_ != nullptr);
      hidden_[i] =
          known ? tokens_[i] : last_->ids_[static_cast<std::size_t>(token_of_choice(tokens_[i]))];
    }
  }
  void mixer(int layer) override {
    for (int& row : hidden_) row += layer;
  }
  void route(int) override {}
  void experts(int, std::span<const RoutedPair>) override {}
  void all_experts(int) override {}
  void dense(int) override {}
  void finish_ffn(int) override {}
  void head() override {
    ids_ = hidden_;
    if (chooses_) under_way_.push_back(hidden_);
  }
  std::span<const float> logits() override { return {}; }
  bool choose(std::span<ChosenToken> chosen) override {
    note("choose");
    for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i].id = under_way_.front()[i];
    under_way_.erase(under_way_.begin());
    return true;
  }
  std::span<const RoutedPair> routed_pairs() override { return {}; }
  Status fault() override {
    return fault_.empty() ? Status() : Error::make(ErrorCode::internal, "{}", fault_);
  }
  void abandon(const Error& why) override { note("abandon: " + why.message); }
  void read_hidden(std::span<float>) override { note("read"); }
  void write_hidden(std::span<const float>) override { note("write"); }
  bool takes_from(Device&) override { return chain_.links; }
  void keep_hidden(int place) override {
    kept_[place] = hidden_;
    note(fmt::format("keep {}", place));
  }
  void await_kept(int place) override {
    note(fmt::format("await {}", place));
    std::unique_lock lock(mutex_);
    let_.wait(lock, [this] { return !held_; });
  }
  void take_hidden(const Device& other, int place) override {
    hidden_ = static_cast<const ChainDevice&>(other).kept_.at(place);
    note(fmt::format("take {}", place));
  }
  void reset_slot(int slot) override { note(fmt::format("reset {}", slot)); }
  void copy_slot(const StateCopy&) override {}
  void copy_page(int, const StateCopy&) override {}

  void lose(std::string why) { fault_ = std::move(why); }
  // Rows are not there before they are let go.
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    let_.notify_all();
  }

 private:
  void note(const std::string& call) {
    const std::lock_guard lock(chain_mutex());
    chain_.calls.push_back(fmt::format("{} {}", number_, call));
  }
  static std::mutex& chain_mutex() {
    static std::mutex mutex;
    return mutex;
  }

  const int number_;
  Chain& chain_;
  bool chooses_ = false;
  std::vector<TokenId> tokens_;
  std::vector<int> hidden_, ids_;
  std::map<int, std::vector<int>> kept_;  // by place
  std::vector<std::vector<int>> under_way_;
  const ChainDevice* last_ = nullptr;
  std::string fault_;
  std::mutex mutex_;
  std::condition_variable let_;
  bool held_ = false;
};

using Calls = std::vector<std::string>;

// `count` devices of one layer each.
struct AheadRig {
  explicit AheadRig(int count, bool links = true) {
    static const Result<Model> model =
        Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
    EXPECT_TRUE(model.ok());
    chain.links = links;
    Plan plan;
    plan.piece_rows = 4;
    std::vector<std::unique_ptr<Shard>> shards;
    for (int i = 0; i < count; ++i) {
      ShardPlan& shard = plan.shards.emplace_back();
      shard.layout = {.first_layer = i + 1,
                      .end_layer = i + 2,
                      .embedding = i == 0,
                      .head = i + 1 == count,
                      .max_rows = 4,
                      .max_logit_rows = 4};
      auto device = std::make_unique<ChainDevice>(i, chain);
      devices.push_back(device.get());
      shards.push_back(
          std::make_unique<LocalShard>(std::move(device), shard.layout, std::vector<int>()));
    }
    auto loaded = Pipeline::load(*model, plan, std::move(shards), {});
    EXPECT_TRUE(loaded.ok());
    pipeline = std::move(*loaded);
  }
  ~AheadRig() { pipeline.reset(); }

  // Of rows of as many sequences, each with a choice where that is asked for.
  BatchView batch(std::vector<TokenId> tokens, bool choices = true) {
    tokens_ = std::move(tokens);
    rows_.clear();
    logit_rows_.clear();
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const int row = static_cast<int>(i);
      rows_.push_back({.first_row = row, .n_rows = 1, .slot = row});
      if (choices) logit_rows_.push_back(row);
    }
    choices_.assign(logit_rows_.size(), {});
    return {tokens_, rows_, logit_rows_, {choices_, {}}};
  }
  void begin(std::vector<TokenId> tokens) {
    const BatchView now = batch(std::move(tokens));
    ASSERT_TRUE(pipeline->may_begin(now));
    pipeline->begin(now);
    std::fill(tokens_.begin(), tokens_.end(), -1000);  // nobody reads it any more
  }
  std::vector<TokenId> chosen() const {
    std::vector<TokenId> ids;
    for (const ChosenToken& token : pipeline->chosen()) ids.push_back(token.id);
    return ids;
  }
  std::vector<TokenId> end() {
    const Status ended = pipeline->end();
    EXPECT_TRUE(ended) << ended.error().message;
    return chosen();
  }
  Calls calls() { return std::exchange(chain.calls, {}); }

  ChainDevice::Chain chain;
  std::vector<ChainDevice*> devices;
  std::unique_ptr<Pipeline> pipeline;

 private:
  std::vector<TokenId> tokens_;
  std::vector<SequenceRows> rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<TokenChoice> choices_;
};

// The tokens go round: from the last device to the first.
TEST(PipelineAhead, TokensAreThoseOfBatchesInTurn) {
  for (const int count : {1, 2, 3}) {
    AheadRig ahead(count), in_turn(count);
    std::vector<TokenId> expected = {5, 40};
    ahead.begin(expected);
    for (int i = 0; i < 5; ++i) {
      ahead.begin({token_of_choice(1), token_of_choice(0)});
      ASSERT_TRUE(in_turn.pipeline->forward(in_turn.batch(expected)));
      expected = in_turn.chosen();
      EXPECT_EQ(ahead.end(), expected) << count << ", " << i;
      std::swap(expected[0], expected[1]);
    }
    ASSERT_TRUE(in_turn.pipeline->forward(in_turn.batch(expected)));
    EXPECT_EQ(ahead.end(), in_turn.chosen());
  }
}

// A begin() waits for nobody; an end() for each device in turn.
TEST(PipelineAhead, WhoIsWaitedForWaitsForNobody) {
  AheadRig rig(2);
  rig.pipeline->reset_slot(1);
  rig.begin({5});
  EXPECT_EQ(rig.calls(), (Calls{"0 reset 1", "0 tokens", "0 keep -1", "1 reset 1", "1 take -1"}));
  rig.pipeline->reset_slot(0);
  rig.begin({token_of_choice(0)});
  EXPECT_EQ(rig.calls(), (Calls{"0 reset 0", "0 tokens", "0 keep -2", "1 reset 0", "1 take -2"}));
  EXPECT_FALSE(rig.pipeline->may_begin(rig.batch({7}))) << "two are under way";
  rig.end();
  EXPECT_EQ(rig.calls(), (Calls{"0 await -1", "1 choose"}));
  rig.begin({token_of_choice(0)});
  EXPECT_EQ(rig.calls(), (Calls{"0 tokens", "0 keep -1", "1 take -1"}));
  rig.end();
  EXPECT_EQ(rig.calls(), (Calls{"0 await -2", "1 choose"}));
  rig.end();
  EXPECT_EQ(rig.calls(), (Calls{"0 await -1", "1 choose"}));
}

TEST(PipelineAhead, EveryDeviceMayBegin) {
  EXPECT_TRUE(AheadRig(2).pipeline->may_begin(AheadRig(1).batch({1, 2})));
  AheadRig rig(2);
  EXPECT_FALSE(rig.pipeline->may_begin(rig.batch({1, 2, 3})));
  EXPECT_FALSE(AheadRig(2, false).pipeline->may_begin(rig.batch({1})));
  EXPECT_FALSE(AheadRig(1, false).pipeline->may_begin(rig.batch({1})));
}

// Threads drive the later shards in between, and are done before this one does.
TEST(PipelineAhead, BatchesInTurnComeBetween) {
  AheadRig rig(2);
  for (int round = 0; round < 50; ++round) {
    rig.begin({round});
    rig.begin({token_of_choice(0)});
    EXPECT_EQ(rig.end(), std::vector<TokenId>{round + 3});
    EXPECT_EQ(rig.end(), std::vector<TokenId>{round + 6});
    ASSERT_TRUE(rig.pipeline->forward(rig.batch({1, 2, 3, 4}, false)));
    ASSERT_TRUE(rig.pipeline->forward(rig.batch({1, 2, 3, 7})));
    EXPECT_EQ(rig.chosen(), (std::vector<TokenId>{4, 5, 6, 10}));
  }
}

TEST(PipelineAhead, NothingIsBegunBesideABatchInTurn) {
  AheadRig rig(3);
  rig.devices[1]->hold(true);
  ASSERT_TRUE(rig.pipeline->forward(rig.batch({1, 2}, false)));
  EXPECT_FALSE(rig.pipeline->may_begin(rig.batch({1})));
  rig.devices[1]->hold(false);
  ASSERT_TRUE(rig.pipeline->finish());
  rig.begin({1});
  EXPECT_EQ(rig.end(), std::vector<TokenId>{7});
}

// Whoever it is, no other device is waited for, now or later.
TEST(PipelineAhead, AllAreLostWithOne) {
  for (const int lost : {0, 1, 2}) {
    AheadRig rig(3);
    rig.begin({1});
    rig.begin({token_of_choice(0)});
    rig.calls();
    rig.devices[static_cast<std::size_t>(lost)]->lose("gone");
    const Status ended = rig.pipeline->end();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().message, "gone");
    Calls expected = {"0 await -1", "1 await -1", "2 choose"};
    expected.resize(static_cast<std::size_t>(lost) + 1);
    for (int i = 0; i < 3; ++i) expected.push_back(fmt::format("{} abandon: gone", i));
    EXPECT_EQ(rig.calls(), expected);
    EXPECT_TRUE(rig.pipeline->chosen().empty());
    EXPECT_FALSE(rig.pipeline->keeps_state());
    EXPECT_FALSE(rig.pipeline->may_begin(rig.batch({1})));
    EXPECT_FALSE(rig.pipeline->forward(rig.batch({1})));
    EXPECT_FALSE(rig.pipeline->finish());
    rig.pipeline.reset();
    EXPECT_EQ(rig.calls(), Calls{}) << lost;
  }
}

TEST(PipelineAhead, WhatIsUnderWayEndsWithThePipeline) {
  AheadRig rig(2);
  rig.begin({1});
  rig.begin({token_of_choice(0)});
  rig.calls();
  rig.pipeline.reset();
  EXPECT_EQ(rig.calls(), (Calls{"0 await -1", "1 choose", "0 await -2", "1 choose"}));
}

}  // namespace
}  // namespace tessera
