// Quantised models on the GPU against the same weights in f32.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>

#include "model/synth.h"
#include "tests/golden_data.h"
#include "tests/gpu/on_gpu.h"

namespace tessera::testing {
namespace {

// KL divergence of each row.
std::vector<double> divergence(std::span<const float> exact, std::span<const float> approximate,
                               std::size_t vocab) {
  std::vector<double> all;
  for (std::size_t at = 0; at < exact.size(); at += vocab) {
    const auto p = log_softmax(exact.subspan(at, vocab));
    const auto q = log_softmax(approximate.subspan(at, vocab));
    double& kl = all.emplace_back(0.0);
    for (std::size_t i = 0; i < vocab; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  }
  return all;
}

// Mean KL divergence of a quantised model on the GPU, in steps of `chunks` rows, to the same
// weights in f32 on the CPU, which `f32_weights` computes like a file of them (quantised_test.cc).
void expect_close_to_twin(const char* family, std::size_t tokens, std::span<const int> chunks) {
  const std::string name = fmt::format("tessera_gpu_kl_{}.gguf", ::getpid());
  const std::string path = (std::filesystem::path(::testing::TempDir()) / name).string();
  ASSERT_TRUE(write_synthetic_model({.family = family, .preset = "tiny", .types = "q4_k_m"}, path));
  const int context = static_cast<int>(tokens);
  ModelRunner exact(path, {.threads = 4, .context = context, .f32_weights = true});
  RunnerOptions options = on_gpu();
  options.kv_type = KvType::f16;
  options.context = context;
  options.prefill_chunk = options.logit_rows = *std::max_element(chunks.begin(), chunks.end());
  ModelRunner quantised(path, options);
  std::filesystem::remove(path);
  ASSERT_TRUE(exact.ready() && quantised.ready());
  ASSERT_EQ(exact.plan().kv_type, KvType::f32);
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<TokenId>((i * 37 + 11 + i / 300) % 300));
  const auto vocab = static_cast<std::size_t>(exact.spec().n_vocab);
  const std::vector<float> reference = exact.logits(ids, 512);
  for (const int chunk : chunks) {
    const std::vector<double> kl = divergence(reference, quantised.logits(ids, chunk), vocab);
    const double mean = std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(tokens);
    const auto worst = std::max_element(kl.begin(), kl.end());
    std::printf("%s, %d rows a step: mean KL to f32 %.2e, at most %.2e at %td\n", family, chunk,
                mean, *worst, worst - kl.begin());
    EXPECT_LT(mean, 1e-3) << family << ", " << chunk << " rows a step";
  }
}

class GpuQuantised : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuQuantised, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

// Tokens, alone and up to eight at once, and a prompt.
TEST_P(GpuQuantised, StaysCloseToItsDequantisedTwin) {
  expect_close_to_twin(GetParam(), 200, std::array{1, 3, 8, 512});
}

// Little enough for a GPU that is emulated.
TEST_P(GpuQuantised, AFewTokensStayCloseToo) {
  expect_close_to_twin(GetParam(), 24, std::array{1, 8, 24});
}

// Steps of at least 1,024 rows have products of their own.
TEST_P(GpuQuantised, LongStepsStayCloseToo) {
  expect_close_to_twin(GetParam(), 1300, std::array{1100, 2048});
}

}  // namespace
}  // namespace tessera::testing
