// Steps of few rows that ask the host for experts while they run.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

constexpr const char* kSmall[] = {"expert_count=24", "block_count=2"};

RunnerOptions on_gpu(double resident, bool graphs) {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.gpu_graphs = graphs;
  options.expert_resident = resident;
  return options;
}

double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(double{a[i]} - b[i]);
  return sum / static_cast<double>(a.size());
}

// As a graph, which is launched whole, and piece by piece: the same bits; and close to what the GPU
// computes with all experts. One row a step to as many as may be.
TEST(GpuPosts, GraphsHaveTheBitsOfPieces) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  std::vector<TokenId> ids;
  for (int i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 300);
  ModelRunner here(file.path(), on_gpu(100.0, true));
  ASSERT_TRUE(here.ready());
  for (const double percent : {0.0, 50.0}) {
    ModelRunner graphs(file.path(), on_gpu(percent, true));
    ModelRunner pieces(file.path(), on_gpu(percent, false));
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
  ModelRunner plain(file.path(), on_gpu(50.0, true));
  ASSERT_TRUE(plain.ready());
  RoutingCounts counts(plain.spec());
  RunnerOptions options = on_gpu(50.0, true);
  options.device.experts.counts = &counts;
  ModelRunner counted(file.path(), options);
  ASSERT_TRUE(counted.ready());
  EXPECT_TRUE(counted.logits(ids, 1) == plain.logits(ids, 1));
}

// A worker that is required and is not there fails the steps that need it, and nothing else.
TEST(GpuPosts, AWorkerThatIsMissingFailsItsSteps) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {kSmall[0], kSmall[1]});
  RunnerOptions options = on_gpu(0.0, true);
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

// A device with every other expert of each layer, and its steps call by call.
class Asking {
 public:
  explicit Asking(const std::string& path, double wait_seconds, bool graphs = true) {
    Result<Model> opened = Model::open(path);
    EXPECT_TRUE(opened);
    model_ = std::make_unique<Model>(*std::move(opened));
    const ModelSpec& spec = model_->spec();
    shard_ = {.end_layer = spec.n_layer(), .head = false, .max_rows = 4, .slots = 1};
    shard_.kv_pages.assign(kv_groups(spec).size(), 16);
    for (const LayerSpec& layer : spec.layers) {
      LayerExperts& experts = shard_.experts.emplace_back();
      for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
        experts.home.push_back(e % 2 == 0 ? ExpertHome::resident() : ExpertHome::host());
    }
    auto made = make_gpu_device(device_kind_name(test_gpu().name->kind),
                                {.index = *test_gpu().name->team,
                                 .load_threads = 2,
                                 .wait_seconds = wait_seconds,
                                 .graphs = graphs},
                                plugin_folder());
    EXPECT_TRUE(made);
    device_ = *std::move(made);
    EXPECT_TRUE(device_->load(*model_, shard_, {}));
  }

  Device& device() { return *device_; }

  // Of two rows, up to where the device asks.
  void begin() {
    device_->reset_slot(0);
    device_->begin({.tokens = ids_, .sequences = {&sequence_, 1}, .logit_rows = {}});
    device_->embed();
    for (int l = 0; l < shard_.end_layer; ++l) {
      device_->mixer(l);
      device_->route(l);
      EXPECT_TRUE(device_->posts_experts(l));
      device_->all_experts(l);
      device_->dense(l);
      device_->finish_ffn(l);
    }
  }
  // Answers with sums that are `value` in each column; how many layers have asked, where `first`
  // were answered before.
  int answer(double value, int first = 0) {
    const auto n = static_cast<std::size_t>(model_->spec().n_embd);
    const std::vector<std::int32_t> rows = {0, 1};
    const std::vector<double> sums(rows.size() * n, value);
    int layers = first;
    for (int l = device_->next_post(); l >= 0; l = device_->next_post(), ++layers) {
      EXPECT_EQ(l, layers);
      EXPECT_EQ(device_->routed_pairs().size(),
                rows.size() * static_cast<std::size_t>(model_->spec().layers.front().moe->n_used));
      EXPECT_EQ(device_->expert_rows(l).size(), sums.size());
      device_->add_expert_sums(l, rows, sums);
      device_->answer_post(l);
    }
    return layers;
  }
  std::vector<float> hidden() {
    std::vector<float> out(ids_.size() * static_cast<std::size_t>(model_->spec().n_embd));
    device_->read_hidden(out);
    return out;
  }
  int layers() const { return shard_.end_layer; }

 private:
  const std::vector<TokenId> ids_ = {5, 7};
  const std::vector<std::int32_t> page_ = {3};
  const std::vector<std::span<const std::int32_t>> pages_{page_};
  const SequenceRows sequence_{.n_rows = 2, .pages = pages_};
  std::unique_ptr<Model> model_;
  ShardLayout shard_;
  std::unique_ptr<Device> device_;
};

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
