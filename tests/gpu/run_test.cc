// Layers of one row as one kernel (kernels/run.h), in the program: the bits of a row among others,
// whose layers have their own kernels. On a GPU that has runs; a model of their shape takes 3 GB.
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
  ModelRunner runner(file.path(), options);
  ASSERT_TRUE(runner.ready());
  ModelRunner::Sequence alone = runner.start(512), among = runner.start(512),
                        other = runner.start(512);
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 40; ++i) prompt.push_back((i * 37 + 11) % 2000);
  for (ModelRunner::Sequence* s : {&alone, &among, &other}) {
    ModelRunner::Feed feed{s, prompt};
    runner.step({&feed, 1});
  }
  // Over the end of a page and of a span of attention.
  const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
  for (TokenId i = 0; i < 230; ++i) {
    const std::vector<TokenId> token{(i * 53 + 7) % 2000};
    ModelRunner::Feed one{&alone, token};
    const std::vector<float> logits = runner.step({&one, 1});
    std::vector<ModelRunner::Feed> two{{&other, {TokenId{i % 1000}}}, {&among, token}};
    const std::vector<float> both = runner.step(two);
    ASSERT_EQ(std::ssize(logits), vocab);
    ASSERT_EQ(std::ssize(both), 2 * vocab);
    ASSERT_TRUE(std::equal(logits.begin(), logits.end(), both.begin() + vocab)) << "step " << i;
  }
}

}  // namespace
}  // namespace tessera::testing
