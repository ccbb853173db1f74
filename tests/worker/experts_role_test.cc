// A model whose routed experts are computed in worker processes gives the answers of the plain run:
// for every family, any share of residents, one worker or two, every payload, both transports.
// What happens to a worker that fails is in expert_faults_test.cc.
#include <gtest/gtest.h>

#include "tests/golden_data.h"
#include "tests/worker/expert_rig.h"

namespace tessera::testing {
namespace {

const char* const kModels[] = {"qwen35moe", "laguna", "gemma4moe"};

std::string file(const std::string& name, const char* ending) {
  return std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + ending;
}

TokenId best_of(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Of the log-probabilities of each row, the rows in rising order of it.
std::vector<double> row_differences(std::span<const float> got, std::span<const float> expected,
                                    std::size_t vocab) {
  std::vector<double> rows;
  for (std::size_t row = 0; row * vocab < expected.size(); ++row) {
    const std::vector<double> a = log_softmax(got.subspan(row * vocab, vocab));
    const std::vector<double> b = log_softmax(expected.subspan(row * vocab, vocab));
    rows.push_back(0.0);
    for (std::size_t i = 0; i < vocab; ++i)
      rows.back() = std::max(rows.back(), std::abs(a[i] - b[i]));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

class WorkerExperts : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return file(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(file(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, WorkerExperts, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param; });

TEST_P(WorkerExperts, AnyShareOfResidentsAndOneWorkerOrTwo) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(120);
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const double resident : {100.0, 60.0, 10.0, 0.0}) {
    for (const int workers : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} % resident, {} workers", resident, workers));
      ExpertRig rig;
      ModelRunner runner(model(), rig.runner(model(), resident, workers));
      ASSERT_TRUE(runner.ready());
      const std::vector<float> got = runner.logits(ids, 512);
      EXPECT_LT(row_differences(got, whole, vocab).back(), 1e-4);
      EXPECT_TRUE(runner.logits(ids, 7) == got);
      EXPECT_EQ(rig.fallbacks(), 0);
      EXPECT_EQ(rig.metrics.worker.pairs.value() > 0, resident < 100.0);
      for (std::size_t row = 0; row < ids.size(); ++row) {
        const std::span<const float> a(got), b(whole);
        EXPECT_EQ(best_of(a.subspan(row * vocab, vocab)), best_of(b.subspan(row * vocab, vocab)));
      }
    }
  }
}

TEST_P(WorkerExperts, PayloadsTransportsAndModes) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(64);
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const ExpertPayload payload :
       {ExpertPayload::f32, ExpertPayload::f16, ExpertPayload::bf16}) {
    std::vector<float> first;
    for (const Link link : {Link::shared, Link::stream}) {
      for (const ExpertMode mode : {ExpertMode::batched, ExpertMode::stream}) {
        ExpertRig rig;
        rig.options = {.mode = mode, .payload = payload};
        rig.link = link;
        ModelRunner runner(model(), rig.runner(model(), 30.0, 1));
        ASSERT_TRUE(runner.ready());
        const std::vector<float> got = runner.logits(ids, 512);
        const std::vector<double> rows = row_differences(got, whole, vocab);
        // bf16 keeps 8 bits of a number: a row whose choice of an expert was near a tie may take
        // another one, and is far off then.
        if (payload == ExpertPayload::bf16) {
          EXPECT_LT(rows[rows.size() / 2], 5e-2);
        } else {
          EXPECT_LT(rows.back(), payload == ExpertPayload::f32 ? 1e-4 : 2e-2);
        }
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first) << "the same bits on any transport in any mode";
        EXPECT_EQ(rig.fallbacks(), 0);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
