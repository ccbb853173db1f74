// Experts that cross to the GPU for a step: the bits are those of the run in which all are
// resident.
#include <gtest/gtest.h>

#include <map>

#include "device/gpu/gpu_layout.h"
#include "tests/golden_data.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

struct Counted {
  MetricsRegistry registry;
  ExpertMetrics metrics{registry};
};

RunnerOptions with_stream(std::optional<double> resident, ExpertStream stream, Counted* counted) {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.experts.options.stream = stream;
  options.device.experts.metrics = counted != nullptr ? &counted->metrics : nullptr;
  options.expert_resident = resident;
  return options;
}

class GpuStream : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    GPU_OR_SKIP();
    const Result<Model> opened = Model::open(model());
    ASSERT_TRUE(opened);
    if (!gpu_experts_may_leave(opened->spec())) GTEST_SKIP() << "its experts stay";
  }
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuStream, ::testing::Values("qwen35moe", "laguna"),
                         [](const auto& info) { return info.param; });

// Steps of more than eight rows have no pair at the host. Chunks such that the last one is as long.
TEST_P(GpuStream, PromptsHaveTheBitsOfTheResidentRun) {
  const GoldenData golden = GoldenData::load(golden_path(GetParam(), ".bin"));
  const std::span<const TokenId> ids = golden.ints("p300_ids").first(90);
  constexpr int kChunks[] = {13, 40, 90};
  ModelRunner plain(model(), with_stream(100.0, ExpertStream::off, nullptr));
  ASSERT_TRUE(plain.ready());
  std::map<int, std::vector<float>> expected;
  for (const int chunk : kChunks) expected[chunk] = plain.logits(ids, chunk);
  for (const double percent : {0.0, 30.0, 60.0}) {
    Counted counted;
    ModelRunner runner(model(), with_stream(percent, ExpertStream::on, &counted));
    ASSERT_TRUE(runner.ready());
    EXPECT_GT(runner.plan().shards[0].streamed_bytes, 0);
    for (const int chunk : kChunks) {
      EXPECT_TRUE(runner.logits(ids, chunk) == expected[chunk])
          << percent << " % resident, " << chunk << " rows a step";
    }
    EXPECT_EQ(counted.metrics.host.pairs.value(), 0u);
    EXPECT_GT(counted.metrics.pairs_streamed.value(), 0u);
    EXPECT_GE(counted.metrics.streamed_bytes.value(),
              counted.metrics.expert_bytes_streamed.value());
  }
}

// Prompts by copies, tokens by reading experts where they lie.
TEST_P(GpuStream, GreedyTokensAreThoseOfTheModel) {
  const GoldenData golden = GoldenData::load(golden_path(GetParam(), ".bin"));
  const std::span<const std::int32_t> prompt = golden.ints("p33_ids");
  const std::span<const std::int32_t> expected = golden.ints("greedy_from_p33");
  const std::span<const float> margin = golden.floats("greedy_margin");
  for (const double percent : {0.0, 30.0, 60.0}) {
    Counted counted;
    ModelRunner runner(model(), with_stream(percent, ExpertStream::on, &counted));
    ASSERT_TRUE(runner.ready());
    const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
    ModelRunner::Sequence sequence = runner.start(128);
    ModelRunner::Feed feed{&sequence, {prompt.begin(), prompt.begin() + 20}};
    runner.step({&feed, 1});
    feed.tokens = {prompt.begin() + 20, prompt.end()};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::vector<float> logits = runner.step({&feed, 1});
      const auto best = std::max_element(logits.end() - vocab, logits.end());
      if (margin[i] > 2e-2f) {
        EXPECT_EQ(best - (logits.end() - vocab), expected[i]) << "step " << i;
      }
      feed.tokens = {expected[i]};
    }
    EXPECT_EQ(counted.metrics.host.pairs.value(), 0u);
  }
}

// More experts than the ring has places, in quantised weights; each crosses once a step at most,
// but for what was brought for a layer that another one came before.
TEST(GpuStreams, CrossOnceAStep) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"expert_count=140", "block_count=2"});
  Counted counted;
  ModelRunner plain(file.path(), with_stream(100.0, ExpertStream::off, nullptr));
  ModelRunner runner(file.path(), with_stream(5.0, ExpertStream::on, &counted));
  ASSERT_TRUE(plain.ready() && runner.ready());
  std::vector<TokenId> ids;
  for (int i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 300);
  const gpu::WeightLayout layout =
      gpu::weight_layout(runner.model().tensors(), runner.spec(), runner.plan().shards[0].layout);
  EXPECT_LT(layout.stream.groups * layout.stream.group_slots, 140);
  std::uint64_t away = 0;
  std::uint64_t expert_bytes = 0;
  for (const gpu::StreamLayout::Layer& layer : layout.stream.layers) {
    away += layer.experts.size();
    if (!layer.experts.empty()) expert_bytes = static_cast<std::uint64_t>(layer.expert_bytes);
  }
  EXPECT_EQ(away * expert_bytes, static_cast<std::uint64_t>(layout.stream.host_bytes));
  for (const int steps : {1, 2}) {
    EXPECT_TRUE(runner.logits(ids, 64) == plain.logits(ids, 64)) << steps;
    const std::uint64_t crossed = counted.metrics.streamed_experts.value();
    EXPECT_LE(crossed, away * static_cast<std::uint64_t>(steps));
    EXPECT_EQ(counted.metrics.streamed_bytes.value(), crossed * expert_bytes);
  }
}

TEST(GpuStreams, TakeWhatThePlanSays) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"expert_count=64", "vocab_size=32768"});
  const std::int64_t before = free_bytes();
  ModelRunner runner(file.path(), with_stream(0.0, ExpertStream::on, nullptr));
  ASSERT_TRUE(runner.ready());
  const ShardPlan& shard = runner.plan().shards[0];
  EXPECT_GT(shard.streamed_bytes, 0);
  const std::int64_t taken = before - free_bytes();
  EXPECT_GE(taken, shard.total_bytes() - (std::int64_t{4} << 20));
  EXPECT_LE(taken, shard.total_bytes() + (std::int64_t{256} << 20));
}

// Pinned memory that cannot be had leaves the layer's experts to the host; what else fails is an
// error.
TEST(GpuStreams, FailedAllocationsLeaveTheExpertsToTheHost) {
  GPU_OR_SKIP();
  const Result<Model> model = Model::open(golden_path("qwen35moe", "-bf16.gguf"));
  ASSERT_TRUE(model);
  const ModelSpec& spec = model->spec();
  ShardLayout shard{.end_layer = spec.n_layer(), .max_rows = 32, .max_logit_rows = 4, .slots = 2};
  shard.kv_pages.assign(kv_groups(spec).size(), 16);
  int layers = 0;
  for (const LayerSpec& layer : spec.layers) {
    LayerExperts& experts = shard.experts.emplace_back();
    if (!layer.moe) continue;
    experts.home.assign(static_cast<std::size_t>(layer.moe->n_expert), ExpertHome::host());
    experts.streamed = true;
    ++layers;
  }
  int without = 0;
  for (int n = 0; n < 200; ++n) {
    auto device =
        make_gpu_device(device_kind_name(test_gpu().name->kind),
                        {.index = *test_gpu().name->team, .load_threads = 2, .fail_allocation = n},
                        plugin_folder());
    ASSERT_TRUE(device) << device.error().message;
    if (const Status loaded = (*device)->load(*model, shard, {}); !loaded) {
      EXPECT_EQ(loaded.error().code, ErrorCode::exhausted) << loaded.error().message;
      continue;
    }
    int have = 0;
    for (int l = 0; l < spec.n_layer(); ++l) have += (*device)->streamable(l).empty() ? 0 : 1;
    if (have == layers) break;
    EXPECT_EQ(have, layers - 1);
    ++without;
  }
  EXPECT_EQ(without, layers);
}

Result<std::unique_ptr<Device>> loaded(const Model& model, const ShardLayout& shard) {
  TESSERA_ASSIGN(auto device, make_gpu_device(device_kind_name(test_gpu().name->kind),
                                              {.index = *test_gpu().name->team, .load_threads = 2},
                                              plugin_folder()));
  TESSERA_TRY(device->load(model, shard, {}));
  return device;
}

// The residual rows after a step whose experts that are not resident are streamed.
std::vector<float> hidden(Device& device, const Model& model, const ShardLayout& shard,
                          std::span<const TokenId> ids) {
  const std::vector<std::int32_t> page = {5};
  const std::vector<std::span<const std::int32_t>> pages(shard.kv_pages.size(), page);
  const SequenceRows sequence{.n_rows = static_cast<int>(ids.size()), .pages = pages};
  device.reset_slot(0);
  device.begin({.tokens = ids, .sequences = {&sequence, 1}, .logit_rows = {}});
  device.embed();
  for (int l = 0; l < shard.end_layer; ++l) {
    device.mixer(l);
    device.route(l);
    if (const LayerExperts* experts = shard.layer_experts(l)) {
      std::vector<RoutedPair> resident, others;
      for (const RoutedPair& pair : device.routed_pairs())
        (experts->home[static_cast<std::size_t>(pair.expert)].is_resident() ? resident : others)
            .push_back(pair);
      device.experts(l, resident);
      device.dense(l);
      if (!others.empty()) device.stream_experts(l, others);
    } else {
      device.all_experts(l);
      device.dense(l);
    }
    device.finish_ffn(l);
  }
  std::vector<float> out(ids.size() * static_cast<std::size_t>(model.spec().n_embd));
  device.read_hidden(out);
  const Status fault = device.fault();
  EXPECT_TRUE(fault) << fault.error().message;
  return out;
}

// Experts that become resident and leave again (--expert-cache): whoever is away can be fetched.
TEST(GpuStreams, FollowExpertsThatMove) {
  GPU_OR_SKIP();
  const Result<Model> model = Model::open(golden_path("qwen35moe", "-bf16.gguf"));
  ASSERT_TRUE(model);
  const ModelSpec& spec = model->spec();
  ShardLayout all{.end_layer = spec.n_layer(), .head = false, .max_rows = 32, .slots = 1};
  all.kv_pages.assign(kv_groups(spec).size(), 16);
  ShardLayout shard = all;
  int layer = -1;
  for (int l = 0; l < spec.n_layer(); ++l) {
    LayerExperts& experts = shard.experts.emplace_back();
    const auto& moe = spec.layers[static_cast<std::size_t>(l)].moe;
    if (!moe) continue;
    layer = l;
    for (int e = 0; e < moe->n_expert; ++e)
      experts.home.push_back(e % 2 == 0 ? ExpertHome::resident() : ExpertHome::host());
    experts.spare = 1;
    experts.streamed = true;
  }
  const std::vector<std::int32_t> prompt = [] {
    const GoldenData golden = GoldenData::load(golden_path("qwen35moe", ".bin"));
    const std::span<const TokenId> ids = golden.ints("p33_ids");
    return std::vector<std::int32_t>(ids.begin(), ids.begin() + 16);
  }();
  auto plain = loaded(*model, all), device = loaded(*model, shard);
  ASSERT_TRUE(plain && device);
  const std::vector<float> expected = hidden(**plain, *model, all, prompt);
  EXPECT_TRUE(hidden(**device, *model, shard, prompt) == expected);
  std::vector<ExpertHome>& homes = shard.experts[static_cast<std::size_t>(layer)].home;
  const auto step_is_right = [&] {
    const std::span<const std::uint8_t> can = (*device)->streamable(layer);
    for (std::size_t e = 0; e < homes.size(); ++e)
      EXPECT_TRUE(homes[e].is_resident() || can[e] == 1) << e;
    EXPECT_TRUE(hidden(**device, *model, shard, prompt) == expected);
  };
  // Into the spare place; for the one that came there; and the first one again.
  for (const ExpertMove& move : {ExpertMove{.layer = layer, .expert = 1},
                                 ExpertMove{.layer = layer, .expert = 3, .evicted = 1},
                                 ExpertMove{.layer = layer, .expert = 1, .evicted = 3}}) {
    SCOPED_TRACE(move.expert);
    (*device)->begin_replace_expert(move);
    if (move.evicted >= 0) homes[static_cast<std::size_t>(move.evicted)] = ExpertHome::host();
    step_is_right();  // meanwhile
    ASSERT_TRUE(moved_in_time(**device));
    homes[static_cast<std::size_t>(move.expert)] = ExpertHome::resident();
    step_is_right();
  }
}

TEST(GpuStreams, ThatAreLateAreAnError) {
  GPU_OR_SKIP();
  RunnerOptions options = with_stream(0.0, ExpertStream::on, nullptr);
  options.device.gpu_wait_s = 1e-9;
  ModelRunner runner(golden_path("qwen35moe", "-bf16.gguf"), options);
  ASSERT_TRUE(runner.ready());
  ModelRunner::Sequence sequence = runner.start(400);
  ModelRunner::Feed feed{&sequence, std::vector<TokenId>(300, 7)};
  const Result<std::vector<float>> logits = runner.try_step({&feed, 1});
  ASSERT_FALSE(logits);
  EXPECT_NE(logits.error().message.find("did not finish a step"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
