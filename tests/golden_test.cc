// The whole forward pass against the reference implementation, and the sameness rule: a row's
// logits have the same bits under any cut of the prompt, any neighbours in the batch and any number
// of threads.
#include <gtest/gtest.h>

#include "device/cpu/isa.h"
#include "tests/golden_answers.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 1e-3;  // of a log-probability

const char* const kPrompts[] = {"p1", "p33", "p300"};

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(golden_path(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(Golden, LogProbabilitiesMatchOnEveryInstructionSet) {
  const GoldenData golden = answers();
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    if (!cpu::parse_isa(isa)) {
      std::printf("no %s on this processor: not tested\n", isa);
      continue;
    }
    for (const bool chunked : {false, true}) {
      ModelRunner runner(model(), {.device = {.cpu_isa = isa, .chunked_delta = chunked}});
      ASSERT_TRUE(runner.ready());
      const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
      for (const std::string prompt : kPrompts) {
        const std::vector<float> got = runner.logits(golden.ints(prompt + "_ids"), 512);
        const std::span<const float> expected = golden.floats(prompt + "_logits");
        ASSERT_EQ(got.size(), expected.size());
        EXPECT_LT(worst_difference(got, expected, vocab), kTolerance) << prompt << " on " << isa;
      }
    }
  }
}

TEST_P(Golden, GreedyContinuationMatches) {
  ModelRunner runner(model(), {});
  expect_greedy(answers(), runner, 1e-3f);
}

class Sameness : public ::testing::TestWithParam<std::tuple<const char*, KvType>> {
 protected:
  std::string model() const { return golden_path(std::get<0>(GetParam()), "-bf16.gguf"); }
  GoldenData answers() const {
    return GoldenData::load(golden_path(std::get<0>(GetParam()), ".bin"));
  }
  RunnerOptions options(int threads) const {
    return {.threads = threads, .kv_type = std::get<1>(GetParam())};
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Sameness,
                         ::testing::Combine(::testing::ValuesIn(kGoldenModels),
                                            ::testing::Values(KvType::f16, KvType::f32,
                                                              KvType::q8_0)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  kv_type_name(std::get<1>(info.param));
                         });

TEST_P(Sameness, AnyCutOfThePromptAndAnyThreads) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner one(model(), options(1));
  ASSERT_TRUE(one.ready());
  const std::vector<float> whole = one.logits(ids, 512);
  for (const int chunk : {1, 7, 64}) EXPECT_EQ(one.logits(ids, chunk), whole) << chunk;
  for (const int threads : {2, 3}) {
    ModelRunner runner(model(), options(threads));
    ASSERT_TRUE(runner.ready());
    for (const int chunk : {7, 512})
      EXPECT_EQ(runner.logits(ids, chunk), whole) << "chunks of " << chunk << ", " << threads;
  }
}

TEST_P(Sameness, AnyNeighboursInTheBatch) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner runner(model(), options(2));
  ASSERT_TRUE(runner.ready());
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  const std::vector<float> alone = runner.logits(ids.first(200), 512);

  // Sequence b is fed in odd pieces between the rows of two others that do something else.
  ModelRunner::Sequence a = runner.start(400), b = runner.start(400), c = runner.start(400);
  std::vector<float> together;
  std::size_t at = 0;
  for (int round = 0; at < 200; ++round) {
    const std::size_t n =
        std::min<std::size_t>(static_cast<std::size_t>(1 + round * 5 % 13), 200 - at);
    ModelRunner::Feed feeds[] = {
        {&a, {static_cast<TokenId>(round % 500)}},
        {&b,
         {ids.begin() + static_cast<std::ptrdiff_t>(at),
          ids.begin() + static_cast<std::ptrdiff_t>(at + n)}},
        {&c, {3, 5, 7}},
    };
    const std::vector<float> logits = runner.step(feeds);
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(vocab);
    together.insert(together.end(), first, first + static_cast<std::ptrdiff_t>(n * vocab));
    at += n;
  }
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace tessera::testing
