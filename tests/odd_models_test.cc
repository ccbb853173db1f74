// Models that the format allows and no published model has: each is computed right, or refused with
// one line before anything runs.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "model/synth.h"
#include "model_runner.h"

namespace tessera::testing {
namespace {

class OddModel {
 public:
  OddModel(const std::string& family, const std::string& types, std::vector<std::string> overrides)
      : path_((std::filesystem::path(::testing::TempDir()) /
               ("tessera_odd_" + std::to_string(count_++) + "_" + std::to_string(::getpid()) +
                ".gguf"))
                  .string()) {
    const Status written = write_synthetic_model(
        {.family = family, .preset = "tiny", .types = types, .overrides = std::move(overrides)},
        path_);
    EXPECT_TRUE(written) << written.error().message;
  }
  ~OddModel() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }

  // Why it cannot be planned, or nothing.
  std::string refusal() const {
    Result<Model> model = Model::open(path_);
    if (!model) return model.error().message;
    Result<Plan> plan = make_plan(*model, probe_inventory(1), {.context = 256});
    return plan ? "" : plan.error().message;
  }

 private:
  inline static int count_ = 0;
  std::string path_;
};

std::vector<TokenId> some_ids(int n) {
  std::vector<TokenId> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * 37 + 11) % 300);
  return ids;
}

// The same logits whatever the cut and the threads.
void expect_sameness(const std::string& path, int n, int prefill_chunk) {
  const std::vector<TokenId> ids = some_ids(n);
  ModelRunner one(path, {.threads = 1, .context = 2048});
  ASSERT_TRUE(one.ready());
  const std::vector<float> whole = one.logits(ids, 512);
  ModelRunner many(path, {.threads = 8, .prefill_chunk = prefill_chunk, .context = 2048});
  ASSERT_TRUE(many.ready());
  EXPECT_EQ(many.logits(ids, prefill_chunk), whole);
}

TEST(OddModels, WideConvolutionsAreRefused) {
  const OddModel model("qwen35moe", "f32", {"ssm.conv_kernel=24"});
  EXPECT_NE(model.refusal().find("convolution of width 24"), std::string::npos) << model.refusal();
}

TEST(OddModels, NarrowDeltaHeadsAreRefused) {
  const OddModel model("qwen35moe", "f32", {"ssm.inner_size=96"});
  EXPECT_NE(model.refusal().find("multiples of 16"), std::string::npos) << model.refusal();
}

TEST(OddModels, OnlyTheDownProjectionIsQuantised) {
  const OddModel model("qwen3", "q8_0", {"embedding_length=48", "feed_forward_length=64"});
  ASSERT_EQ(model.refusal(), "");
  expect_sameness(model.path(), 20, 7);
}

TEST(OddModels, MoreExpertsATokenThanAnyoneUses) {
  const OddModel model("qwen35moe", "f32", {"expert_count=300", "expert_used_count=280"});
  ASSERT_EQ(model.refusal(), "");
  expect_sameness(model.path(), 5, 2);
}

TEST(OddModels, EveryLayerHasAWindow) {
  const OddModel model("laguna", "q8_0",
                       {"attention.sliding_window=512", "attention.sliding_window_pattern=1",
                        "attention.head_count=15", "attention.head_count_kv=15"});
  ASSERT_EQ(model.refusal(), "");
  expect_sameness(model.path(), 1060, 16);
}

}  // namespace
}  // namespace tessera::testing
