// Layers of one row as one kernel (kernels/run.h), in the program: the bits of a row alone and of
// one of two, which follow each other, are those of a row among three, whose layers have their own
// kernels. On a GPU that has runs; a model of their shape takes 3 GB.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "model/synth.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

class RunModel {
 public:
  RunModel()
      : path_((std::filesystem::path(::testing::TempDir()) /
               ("tessera_run_" + std::to_string(::getpid()) + ".gguf"))
                  .string()) {
    const Status written =
        write_synthetic_model({.family = "qwen35moe",
                               .preset = "full",
                               .types = "q4_k_m",
                               .overrides = {"block_count=5", "vocab_size=2048"}},
                              path_);
    EXPECT_TRUE(written) << written.error().message;
  }
  ~RunModel() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(GpuRuns, HaveTheBitsOfARowAmongOthers) {
  GPU_OR_SKIP();
  const auto info =
      probe_gpu(device_kind_name(test_gpu().name->kind), *test_gpu().name->team, plugin_folder());
  ASSERT_TRUE(info);
  if (std::string_view(info->architecture) != "sm_90" || info->multiprocessors < 132)
    GTEST_SKIP() << info->name << " has no runs";
  const RunModel file;
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.parallel = 6;
  ModelRunner runner(file.path(), options);
  ASSERT_TRUE(runner.ready());
  // By how many rows a step has, the one that is compared last.
  std::vector<std::vector<ModelRunner::Sequence>> sequences;
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 40; ++i) prompt.push_back((i * 37 + 11) % 2000);
  for (std::size_t rows = 1; rows <= 3; ++rows) {
    auto& of = sequences.emplace_back();
    for (std::size_t i = 0; i < rows; ++i) {
      of.push_back(runner.start(512));
      ModelRunner::Feed feed{&of.back(), prompt};
      runner.step({&feed, 1});
    }
  }
  // Over the end of a page and of a span of attention.
  const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
  for (TokenId i = 0; i < 230; ++i) {
    std::vector<float> alone;
    for (auto& of : sequences) {
      std::vector<ModelRunner::Feed> feeds;
      for (auto& sequence : of) feeds.push_back({&sequence, {TokenId{i % 1000}}});
      feeds.back().tokens = {(i * 53 + 7) % 2000};
      const std::vector<float> logits = runner.step(feeds);
      ASSERT_EQ(std::ssize(logits), std::ssize(of) * vocab);
      if (of.size() == 1) alone = logits;
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), logits.end() - vocab))
          << "step " << i << ", " << of.size() << " rows";
    }
  }
}

}  // namespace
}  // namespace tessera::testing
