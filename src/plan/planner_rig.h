// Machines and models to plan for, for tests.
//
//   make_plan(deep(), machine(3), {.context = 256})
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/synth.h"
#include "plan/shard_planner.h"

namespace tessera {

inline constexpr std::int64_t kPlenty = std::int64_t{32} << 30;

inline Model golden(const std::string& name) {
  Result<Model> model =
      Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

// Of devices of one memory.
inline Inventory machine(int devices, std::int64_t free_bytes = kPlenty) {
  Inventory inventory;
  for (int i = 0; i < devices; ++i)
    inventory.devices.push_back({.name = fmt::format("cpu:{}", i),
                                 .threads = 1,
                                 .memory_total = kPlenty,
                                 .memory_free = free_bytes});
  return inventory;
}

// Written, opened and removed.
inline Model synthetic(const SynthOptions& options) {
  const std::string path = fmt::format("{}planner_rig_{}.gguf", ::testing::TempDir(), ::getpid());
  EXPECT_TRUE(write_synthetic_model(options, path));
  Result<Model> model = Model::open(path);
  EXPECT_TRUE(model) << model.error().message;
  std::filesystem::remove(path);
  return *std::move(model);
}

// Twelve equal layers.
inline const Model& deep() {
  static const Model kModel =
      synthetic({.family = kEqualLayersFamily, .preset = "tiny", .overrides = {"block_count=12"}});
  return kModel;
}

// Its experts outweigh the rest.
inline const Model& expert_heavy() {
  static const Model kModel = synthetic({.preset = "tiny", .overrides = {"expert_count=256"}});
  return kModel;
}

// The published dimensions, without the weights.
inline const Model& full_preset() {
  static const Model kModel = synthetic({.preset = "full", .hollow = true});
  return kModel;
}

inline std::vector<int> ends(const Plan& plan) {
  std::vector<int> result;
  for (const ShardPlan& shard : plan.shards) result.push_back(shard.layout.end_layer);
  return result;
}

}  // namespace tessera
