// Layer times of every family on this process's device, and what is asked of a shard for them.
#include "pipeline/measure_layers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <set>

#include "device/cpu/cpu_device.h"
#include "plan/layer_cuts.h"

namespace tessera {
namespace {

const char* const kModels[] = {"qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"};

Model golden(const std::string& name) {
  Result<Model> model =
      Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

Result<std::unique_ptr<Shard>> open_local(const ShardLayout& layout) {
  TESSERA_ASSIGN(auto device, make_cpu_device({.threads = 1}));
  return std::unique_ptr<Shard>(
      std::make_unique<LocalShard>(std::move(device), layout, std::vector<int>()));
}

TEST(MeasureLayers, GivesEveryLayerATime) {
  for (const char* name : kModels) {
    const Model model = golden(name);
    for (const bool head : {false, true}) {
      const Result<MeasuredLayers> measured =
          measure_layers(model, {.piece_rows = 33, .head = head}, open_local);
      ASSERT_TRUE(measured) << name << ": " << measured.error().message;
      const LayerTimes& times = measured->times;
      EXPECT_TRUE(usable(times, model.spec().n_layer())) << name;
      EXPECT_GE(measured->spread, 0.0);
      EXPECT_TRUE(std::isfinite(measured->spread));
      if (!head) {
        EXPECT_EQ(times.head_s, 0.0);
      }
    }
  }
}

// Computes nothing and notes what it is asked.
struct Asked {
  std::vector<ShardLayout> layouts;
  int alive = 0;
  int fail_at = -1;  // the load that fails
};

class NotingShard final : public Shard {
 public:
  NotingShard(Asked& asked, const ShardLayout& layout) : asked_(asked), layout_(layout) {
    EXPECT_EQ(asked_.alive++, 0) << "two at a time";
  }
  ~NotingShard() override { --asked_.alive; }

  Status load(const Model&, const LoadProgress&) override {
    asked_.layouts.push_back(layout_);
    if (static_cast<int>(asked_.layouts.size()) == asked_.fail_at)
      return Error::make(ErrorCode::unavailable, "it is gone");
    return {};
  }
  Status prepare(Piece& piece) override {
    const SequenceRows& sequence = piece.view().sequences.front();
    EXPECT_EQ(piece.changes.size(), sequence.first_position == 0 ? 1u : 0u);
    EXPECT_LE(piece.view().rows(), layout_.max_rows);
    EXPECT_LE(sequence.first_position + sequence.n_rows, layout_.context);
    EXPECT_EQ(sequence.pages.size(), layout_.kv_pages.size());
    EXPECT_EQ(piece.view().logit_rows.empty(), !layout_.head);
    return {};
  }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>& near) override {
    near();
    return {};
  }
  std::span<const float> logits() override { return {}; }

 private:
  Asked& asked_;
  ShardLayout layout_;
};

ShardMaker noting(Asked& asked) {
  return [&](const ShardLayout& layout) -> Result<std::unique_ptr<Shard>> {
    return std::unique_ptr<Shard>(std::make_unique<NotingShard>(asked, layout));
  };
}

TEST(MeasureLayers, AsksForOneShardOfEachKindAndOneOfSeveral) {
  for (const char* name : kModels) {
    const Model model = golden(name);
    const std::vector<bool> legal = legal_cuts(model.spec());
    const std::vector<LayerUnit> units = layer_units(model);
    std::set<int> kinds;
    for (const LayerUnit& unit : units) kinds.insert(unit.kind);
    for (const bool head : {false, true}) {
      Asked asked;
      ASSERT_TRUE(measure_layers(model, {.piece_rows = 33, .head = head}, noting(asked)));
      EXPECT_EQ(asked.alive, 0);
      EXPECT_LE(asked.layouts.size(), kinds.size() + 2);
      int with_head = 0;
      for (const ShardLayout& layout : asked.layouts) {
        EXPECT_TRUE(legal[static_cast<std::size_t>(layout.first_layer)]);
        EXPECT_TRUE(legal[static_cast<std::size_t>(layout.end_layer)]);
        EXPECT_EQ(layout.embedding, layout.first_layer == 0);
        EXPECT_EQ(layout.head, layout.end_layer == model.spec().n_layer());
        with_head += layout.head ? 1 : 0;
      }
      EXPECT_EQ(with_head, head ? 1 : 0) << name;
    }
  }
}

TEST(MeasureLayers, WhatDoesNotFitIsNotLoaded) {
  const Model model = golden("qwen3");
  Asked asked;
  const Result<MeasuredLayers> none =
      measure_layers(model, {.fits = [](const ShardLayout&) { return false; }}, noting(asked));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::exhausted);
  EXPECT_EQ(none.error().message, "its memory does not hold all weights of layer 1");
  EXPECT_TRUE(asked.layouts.empty());
  // Room for single layers: what a call costs is not known, and counts with them.
  const Result<MeasuredLayers> single = measure_layers(
      model,
      {.fits = [](const ShardLayout& shard) { return shard.end_layer - shard.first_layer == 1; }},
      noting(asked));
  ASSERT_TRUE(single) << single.error().message;
  EXPECT_EQ(single->times.call, StepTime());
  EXPECT_EQ(asked.layouts.size(), 1u);
}

TEST(MeasureLayers, TheThreadGetsItsProcessorsBack) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const Model model = golden("qwen3");
  for (const int fail_at : {-1, 1}) {
    Asked asked{.fail_at = fail_at};
    const auto times = measure_layers(model, {.cpus = {0}}, noting(asked));
    EXPECT_EQ(times.ok(), fail_at < 0);
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }
}

TEST(MeasureLayers, AShardThatFailsIsTheError) {
  const Model model = golden("qwen35moe");
  for (const int fail_at : {1, 2}) {
    Asked asked{.fail_at = fail_at};
    const Result<MeasuredLayers> times = measure_layers(model, {.head = true}, noting(asked));
    ASSERT_FALSE(times);
    EXPECT_EQ(times.error().message, "it is gone");
    EXPECT_EQ(asked.alive, 0);
  }
}

}  // namespace
}  // namespace tessera
