// Steps of few rows that ask the host for experts while they run.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/gpu/asking.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

constexpr const char* kSmall[] = {"expert_count=24", "block_count=2"};

// The host computes what is away.
RunnerOptions with_resident(double resident, bool graphs) {
  RunnerOptions options;
  options.device.experts.options.stream = ExpertStream::off;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.gpu_graphs = graphs;
  options.expert_resident = resident;
  return options;
}

// As a graph, which is launched whole, and piece by piece: the same bits; and close to what the GPU
// computes with all experts. One row a step to as many as may be.
TEST(GpuPosts, GraphsHaveTheBitsOfPieces) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  std::vector<TokenId> ids;
  for (int i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 300);
  ModelRunner here(file.path(), with_resident(100.0, true));
  ASSERT_TRUE(here.ready());
  for (const double percent : {0.0, 50.0}) {
    ModelRunner graphs(file.path(), with_resident(percent, true));
    ModelRunner pieces(file.path(), with_resident(percent, false));
    ASSERT_TRUE(graphs.ready() && pieces.ready());
    for (const int chunk : {1, 3, 8}) {
      const std::vector<float> got = graphs.logits(ids, chunk);
      EXPECT_TRUE(got == pieces.logits(ids, chunk)) << percent << ", " << chunk << " rows";
      EXPECT_LT(mean_difference(got, here.logits(ids, chunk)), 1e-2);
    }
  }
}

// Which steps are counted (one in 17) shows in no bit.
TEST(GpuPosts, CountedStepsHaveTheBitsOfOthers) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  std::vector<TokenId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back((i * 37 + 11) % 300);
  ModelRunner plain(file.path(), with_resident(50.0, true));
  ASSERT_TRUE(plain.ready());
  RoutingCounts counts(plain.spec());
  RunnerOptions options = with_resident(50.0, true);
  options.device.experts.counts = &counts;
  ModelRunner counted(file.path(), options);
  ASSERT_TRUE(counted.ready());
  EXPECT_TRUE(counted.logits(ids, 1) == plain.logits(ids, 1));
}

// A worker that is required and is not there fails the steps that need it, and nothing else.
TEST(GpuPosts, AWorkerThatIsMissingFailsItsSteps) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  RunnerOptions options = with_resident(0.0, true);
  options.expert_workers = 1;
  options.device.experts.options.required = true;
  ModelRunner runner(file.path(), options);
  ASSERT_TRUE(runner.ready());
  for (int i = 0; i < 3; ++i) {
    ModelRunner::Sequence sequence = runner.start(64);
    ModelRunner::Feed feed{&sequence, {5, 7}};
    const Result<std::vector<float>> logits = runner.try_step({&feed, 1});
    ASSERT_FALSE(logits);
    EXPECT_EQ(logits.error().code, ErrorCode::unavailable) << logits.error().message;
    EXPECT_TRUE(runner.pipeline().keeps_state());
  }
}

// The caller may end a step in the midst of it, piece by piece and as a graph.
TEST(GpuPosts, AStepThatIsDroppedLeavesNothing) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  for (const bool graphs : {true, false}) {
    Asking asking(file.path(), 60, graphs);
    std::vector<float> expected;
    for (int i = 0; i < 3; ++i) {
      // The first one before any was whole.
      asking.begin();
      EXPECT_EQ(asking.device().next_post(), 0);
      if (i % 2 == 0) asking.device().drop_posts();  // else the next one's begin does
      asking.begin();
      EXPECT_EQ(asking.answer(0.25), asking.layers());
      if (i == 0) expected = asking.hidden();
      EXPECT_TRUE(asking.hidden() == expected) << i;
    }
    asking.begin();
    EXPECT_EQ(asking.answer(0.5), asking.layers());
    EXPECT_FALSE(asking.hidden() == expected) << "the sums count";
    EXPECT_TRUE(asking.device().fault());
    EXPECT_TRUE(asking.device().posts_answered());
  }
}

// Who does not answer is waited for so long and no longer. It costs that step alone.
TEST(GpuPosts, AnAnswerThatIsLateSpoilsItsStep) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  Asking asking(file.path(), 0.5);
  std::vector<float> expected;
  for (int i = 0; i < 2; ++i) {  // from the second time on a graph
    asking.begin();
    asking.answer(0.25);
    expected = asking.hidden();
  }
  ASSERT_TRUE(asking.device().posts_answered());
  asking.begin();
  EXPECT_EQ(asking.device().next_post(), 0);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  asking.device().answer_post(0);
  asking.answer(0.25, 1);
  asking.hidden();
  const Status answered = asking.device().posts_answered();
  ASSERT_FALSE(answered);
  EXPECT_EQ(answered.error().code, ErrorCode::unavailable);
  EXPECT_TRUE(asking.device().fault());
  asking.begin();
  asking.answer(0.25);
  EXPECT_TRUE(asking.hidden() == expected);
  EXPECT_TRUE(asking.device().posts_answered());
}

}  // namespace
}  // namespace tessera::testing
