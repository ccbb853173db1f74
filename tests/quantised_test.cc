// What 8-bit activations cost: logits of quantised models against those of the same weights
// dequantised to f32, and the sameness rule on the integer kernels.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "device/cpu/isa.h"
#include "gguf/writer.h"
#include "model/synth.h"
#include "model_runner.h"

namespace tessera::testing {
namespace {

constexpr double kMeanKl = 1e-3;

std::string temporary(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) / ("tessera_" + name)).string();
}

// The same model with every tensor stored as f32.
void write_dequantised(const std::string& from, const std::string& to) {
  Result<gguf::File> file = gguf::File::open(from);
  ASSERT_TRUE(file) << file.error().message;
  Result<gguf::Writer> writer = gguf::Writer::create(to);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const auto& entry : file->metadata().entries()) writer->add(entry.key, entry.value);
  for (const gguf::TensorInfo& tensor : file->tensors())
    writer->add_tensor(tensor.name, BlockType::F32, tensor.ne);
  for (const gguf::TensorInfo& tensor : file->tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    dequantize_row(tensor.type, tensor.data, tensor.elements(), values.data());
    ASSERT_TRUE(writer->write(std::as_bytes(std::span(values))));
  }
  const Status finished = writer->finish();
  ASSERT_TRUE(finished) << finished.error().message;
}

double mean_kl(std::span<const float> exact, std::span<const float> approximate,
               std::size_t vocab) {
  double sum = 0.0;
  const std::size_t rows = exact.size() / vocab;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<double> p = log_softmax(exact.subspan(row * vocab, vocab));
    const std::vector<double> q = log_softmax(approximate.subspan(row * vocab, vocab));
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(rows);
}

std::vector<TokenId> random_ids(int n, int n_token) {
  std::mt19937 random(7);
  std::vector<TokenId> ids;
  for (int i = 0; i < n; ++i)
    ids.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(n_token)));
  return ids;
}

class Quantised : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = temporary(std::string(GetParam()) + ".gguf");
    const Status written =
        write_synthetic_model({.family = GetParam(), .preset = "tiny", .types = "q4_k_m"}, path_);
    ASSERT_TRUE(written) << written.error().message;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
};
INSTANTIATE_TEST_SUITE_P(Families, Quantised,
                         ::testing::Values("qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe",
                                           "qwen3"),
                         [](const auto& info) { return info.param; });

TEST_P(Quantised, StaysCloseToItsDequantisedTwin) {
  const std::string twin = path_ + ".f32";
  write_dequantised(path_, twin);
  if (HasFatalFailure()) return;
  ModelRunner quantised(path_, {.kv_type = KvType::f16});
  ModelRunner exact(twin, {.kv_type = KvType::f32});
  std::filesystem::remove(twin);
  ASSERT_TRUE(quantised.ready() && exact.ready());
  const std::vector<TokenId> ids = random_ids(200, exact.spec().n_token);
  const double kl = mean_kl(exact.logits(ids, 512), quantised.logits(ids, 512),
                            static_cast<std::size_t>(exact.spec().n_vocab));
  RecordProperty("mean_kl", std::to_string(kl));
  std::printf("%s: mean KL %.2e\n", GetParam(), kl);
  EXPECT_LT(kl, kMeanKl);
}

// What `--compute f32` promises: the file's own numbers.
TEST_P(Quantised, ComputesLikeItsDequantisedTwinWhenAskedFor) {
  const std::string twin = path_ + ".f32";
  write_dequantised(path_, twin);
  if (HasFatalFailure()) return;
  ModelRunner widened(path_, {.f32_weights = true});
  ModelRunner exact(twin, {});
  std::filesystem::remove(twin);
  ASSERT_TRUE(widened.ready() && exact.ready());
  EXPECT_EQ(widened.plan().kv_type, KvType::f32);
  EXPECT_EQ(widened.plan().total_bytes(), exact.plan().total_bytes());
  const std::vector<TokenId> ids = random_ids(70, exact.spec().n_token);
  EXPECT_EQ(widened.logits(ids, 64), exact.logits(ids, 64));
}

TEST_P(Quantised, RowsDoNotDependOnTheirBatch) {
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    if (!cpu::parse_isa(isa)) continue;
    ModelRunner runner(path_, {.threads = 2, .device = {.cpu_isa = isa}});
    ASSERT_TRUE(runner.ready());
    const std::vector<TokenId> ids = random_ids(90, runner.spec().n_token);
    const std::vector<float> whole = runner.logits(ids, 512);
    for (const int chunk : {1, 5, 33}) EXPECT_EQ(runner.logits(ids, chunk), whole) << isa << chunk;
  }
}

}  // namespace
}  // namespace tessera::testing
