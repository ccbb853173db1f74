// A model over several shards of one process gives the logits of the unsplit one, bit for bit: for
// every family, any cut of the prompt, several sequences, and whatever the options.
#include <gtest/gtest.h>

#include "choices.h"
#include "device/cpu/isa.h"
#include "golden_data.h"
#include "model_runner.h"

namespace tessera::testing {
namespace {

Placement shards(int count) {
  Placement placement;
  placement.devices.clear();
  for (int i = 0; i < count; ++i) placement.devices.push_back({.team = i});
  return placement;
}

// As many as layers that share KV leave possible.
int most_shards(const std::string& model, int wanted) {
  const Result<Model> opened = Model::open(golden_path(model, "-bf16.gguf"));
  EXPECT_TRUE(opened);
  int parts = 0;
  const ModelSpec& spec = opened->spec();
  for (int cut = 1; cut <= spec.n_layer(); ++cut) {
    bool legal = true;
    for (int l = cut; l < spec.n_layer(); ++l) {
      const AttentionSpec* a = spec.layers[static_cast<std::size_t>(l)].attention();
      legal &= a == nullptr || a->kv_source < 0 || a->kv_source >= cut;
    }
    parts += legal ? 1 : 0;
  }
  return std::min(parts, wanted);
}

class Split : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(golden_path(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, Split, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(Split, AnyNumberOfShardsAndAnyCutOfThePrompt) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> whole = plain.logits(ids, 512);
  const int most = most_shards(GetParam(), 4);
  EXPECT_GE(most, 2);
  for (int count = 1; count <= most; ++count) {
    ModelRunner runner(model(), {.threads = count, .placement = shards(count)});
    ASSERT_TRUE(runner.ready());
    for (const int chunk : {512, 130, 37})
      EXPECT_TRUE(runner.logits(ids, chunk) == whole) << count << " shards, chunks of " << chunk;
    const auto few = ids.first(20);
    EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + 20 * runner.spec().n_vocab,
                           runner.logits(few, 1).begin()))
        << count << " shards, token by token";
  }
}

TEST_P(Split, TeamsOfSeveralThreads) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ModelRunner runner(model(), {.threads = 5, .placement = shards(2)});
  ASSERT_TRUE(plain.ready() && runner.ready());
  EXPECT_TRUE(runner.logits(ids, 200) == plain.logits(ids, 512));
}

TEST_P(Split, EveryPlaceOfTheCut) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p33_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> whole = plain.logits(ids, 512);
  const int n = plain.spec().n_layer();
  for (int first = 1; first < n; ++first) {
    Placement placement = shards(2);
    placement.layer_weights = {static_cast<double>(first), static_cast<double>(n - first)};
    ModelRunner runner(model(), {.threads = 2, .placement = placement});
    ASSERT_TRUE(runner.ready());
    EXPECT_TRUE(runner.logits(ids, 512) == whole) << first << " of " << n;
  }
}

// Where the head is, and as the logits have it, in one piece and in several.
TEST_P(Split, TokensAreChosenAsTheLogitsHaveIt) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> logits = plain.logits(ids, 512);
  const int most = most_shards(GetParam(), 3);
  for (int count = 1; count <= most; ++count) {
    SCOPED_TRACE(count);
    ModelRunner runner(model(), {.threads = count, .placement = shards(count)});
    ASSERT_TRUE(runner.ready());
    expect_choices(runner, ids, logits, 300, 5);
    expect_choices(runner, ids.first(20), logits, 1, 5);
  }
}

// Sequences that start, run and end at their own times, in batches that mix their rows.
TEST_P(Split, SeveralSequencesInTheBatch) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  const auto run = [&](ModelRunner& runner) {
    std::vector<float> all;
    ModelRunner::Sequence a = runner.start(400), b = runner.start(400);
    std::size_t at = 0;
    for (int round = 0; at < 300; ++round) {
      const std::size_t n = std::min<std::size_t>(
          static_cast<std::size_t>(round % 3 == 2 ? 1 : 40 + 60 * (round % 4)), 300 - at);
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
      ModelRunner::Feed feeds[] = {
          {&a, {static_cast<TokenId>(round * 7 % 500)}},
          {&b, {begin, begin + static_cast<std::ptrdiff_t>(n)}},
          {&a, {}},
      };
      // Every third round a third sequence comes into a slot that was used before.
      ModelRunner::Sequence c = runner.start(90);
      feeds[2] = {&c, {ids.begin(), ids.begin() + 70 + round % 5}};
      const std::vector<float> logits = runner.step(feeds);
      all.insert(all.end(), logits.begin(), logits.end());
      at += n;
    }
    return all;
  };
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> expected = run(plain);
  const int most = most_shards(GetParam(), 3);
  for (int count = 2; count <= most; ++count) {
    ModelRunner runner(model(), {.threads = count, .placement = shards(count)});
    ASSERT_TRUE(runner.ready());
    EXPECT_TRUE(run(runner) == expected) << count << " shards";
  }
}

// --- Options mean the same on every topology ---

struct OptionCase {
  std::string name;
  RunnerOptions options;
};

std::vector<OptionCase> option_cases() {
  std::vector<OptionCase> cases;
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0})
    cases.push_back({std::string("kv type ") + kv_type_name(type), {.kv_type = type}});
  for (const int parallel : {1, 6})
    cases.push_back({fmt::format("parallel {}", parallel), {.parallel = parallel}});
  for (const int chunk : {16, 64, 100, 333})
    cases.push_back({fmt::format("prefill chunk {}", chunk), {.prefill_chunk = chunk}});
  for (const int context : {310, 4096})
    cases.push_back({fmt::format("context {}", context), {.context = context}});
  for (const char* isa : {"portable", "avx2", "avx512"})
    if (cpu::parse_isa(isa))
      cases.push_back({std::string("isa ") + isa, {.device = {.cpu_isa = isa}}});
  for (const bool chunked : {false, true})
    cases.push_back({chunked ? "delta form chunked" : "delta form recurrent",
                     {.device = {.chunked_delta = chunked}}});
  return cases;
}

// What a run shows of its options, and the bits that come of it.
struct OptionResult {
  std::vector<float> logits;
  int context = 0;
  int parallel = 0;
  int prefill_chunk = 0;
  KvType kv_type{};
  int sequences = 0;  // that could run at a time
  int positions = 0;  // that one could have
};

OptionResult try_options(const std::string& model, std::span<const TokenId> ids,
                         const RunnerOptions& options) {
  ModelRunner runner(model, options);
  EXPECT_TRUE(runner.ready());
  OptionResult result;
  if (!runner.ready()) return result;
  result.logits = runner.logits(ids, options.prefill_chunk);
  result.context = runner.plan().context;
  result.parallel = runner.plan().parallel;
  result.prefill_chunk = runner.plan().prefill_chunk;
  result.kv_type = runner.plan().kv_type;
  result.sequences = runner.pool().free_slots();
  result.positions = runner.pool().max_positions();
  return result;
}

TEST(SplitOptions, AreHonouredOnEveryTopology) {
  for (const char* name : {"qwen35moe", "gemma4"}) {
    const std::string model = golden_path(name, "-bf16.gguf");
    const GoldenData golden = GoldenData::load(golden_path(name, ".bin"));
    const std::span<const std::int32_t> ids = golden.ints("p300_ids");
    const int most = most_shards(name, 3);
    for (OptionCase test : option_cases()) {
      SCOPED_TRACE(std::string(name) + ", " + test.name);
      test.options.threads = 1;
      const OptionResult expected = try_options(model, ids, test.options);
      EXPECT_EQ(expected.parallel, test.options.parallel);
      EXPECT_EQ(expected.prefill_chunk, test.options.prefill_chunk);
      EXPECT_EQ(expected.sequences, test.options.parallel);
      if (test.options.kv_type) {
        EXPECT_EQ(expected.kv_type, *test.options.kv_type);
      }
      for (int count = 1; count <= most; ++count) {
        test.options.threads = count;
        test.options.placement = shards(count);
        const OptionResult got = try_options(model, ids, test.options);
        EXPECT_TRUE(got.logits == expected.logits) << count << " shards";
        EXPECT_EQ(got.context, expected.context) << count << " shards";
        EXPECT_EQ(got.parallel, expected.parallel) << count << " shards";
        EXPECT_EQ(got.prefill_chunk, expected.prefill_chunk) << count << " shards";
        EXPECT_EQ(got.kv_type, expected.kv_type) << count << " shards";
        EXPECT_EQ(got.sequences, expected.sequences) << count << " shards";
        EXPECT_EQ(got.positions, expected.positions) << count << " shards";
      }
    }
  }
}

// The forms differ by rounding, so equal bits above would not show an option that nothing reads.
TEST(SplitOptions, ReachTheShards) {
  const std::string model = golden_path("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  const auto logits = [&](RunnerOptions options) {
    options.threads = 2;
    options.placement = shards(2);
    return try_options(model, ids, options).logits;
  };
  const std::vector<float> usual = logits({});
  EXPECT_FALSE(logits({.device = {.chunked_delta = true}}) == usual);
  EXPECT_FALSE(logits({.kv_type = KvType::q8_0}) == usual);
  if (cpu::detect_isa() != cpu::Isa::portable) {
    EXPECT_FALSE(logits({.device = {.cpu_isa = "portable"}}) == usual);
  }
}

TEST(SplitPipeline, StateIsCopiedAsOne) {
  const std::string model = golden_path("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  for (const int count : {1, 2, 3}) {
    ModelRunner runner(model, {.threads = count, .placement = shards(count)});
    ASSERT_TRUE(runner.ready());
    SCOPED_TRACE(count);
    expect_state_copied(runner, ids);
  }
}

TEST(SplitPipeline, BatchesWithoutLogitsFollowEachOther) {
  const std::string model = golden_path("gemma4", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path("gemma4", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model, {.threads = 1});
  ModelRunner runner(model, {.threads = 2, .placement = shards(2)});
  ASSERT_TRUE(plain.ready() && runner.ready());
  const std::vector<float> whole = plain.logits(ids, 512);
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  // The batch's memory is written over as soon as forward() returns, and pages that fell out of a
  // window are used again.
  for (const int chunk : {1, 10, 64, 150}) {
    const std::vector<float> last = runner.last_logits(ids, chunk);
    ASSERT_EQ(last.size(), vocab);
    EXPECT_TRUE(
        std::equal(last.begin(), last.end(), whole.end() - static_cast<std::ptrdiff_t>(vocab)))
        << chunk;
  }
}

TEST(SplitPipeline, StopsAtAnyTimeAndMoreThanOnce) {
  const std::string model = golden_path("laguna", "-bf16.gguf");
  const std::vector<TokenId> ids(200, 7);
  for (const int count : {1, 2, 3}) {
    ModelRunner runner(model, {.threads = count, .placement = shards(count)});
    ASSERT_TRUE(runner.ready());
    ModelRunner::Sequence sequence = runner.start(400);
    sequence.state.extend(200);
    const SequenceRows rows{
        .n_rows = 200, .slot = sequence.state.slot(), .pages = sequence.state.page_tables()};
    const BatchView batch{.tokens = ids, .sequences = {&rows, 1}, .logit_rows = {}};
    ASSERT_TRUE(runner.pipeline().forward(batch));
    runner.pipeline().stop();  // with rows under way
    runner.pipeline().stop();
    const Status refused = runner.pipeline().forward(batch);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
    runner.pipeline().reset_slot(0);
    EXPECT_TRUE(runner.pipeline().logits().empty());
  }
}

}  // namespace
}  // namespace tessera::testing
