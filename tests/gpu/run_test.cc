// Layers of one row as one kernel (kernels/run.h), in the program: the bits of a row alone and of
// one of two, which follow each other, are those of a row among three, five or eight, whose FFNs
// are kernels that make the next layer's projections, too. And rows of one sequence have those of
// kernels that do not overlap. On a GPU that has runs; a model of their shape takes 3 GB, twice.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
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
  options.parallel = 21;
  ModelRunner runner(file.path(), options);
  ASSERT_TRUE(runner.ready());
  // Three texts of different lengths, of which a step has one or several. With four rows the delta
  // rule begins to go by heads.
  const auto token_of = [](int text, int at) { return TokenId{(at * (37 + text) + 11) % 2000}; };
  const auto length_of = [](int text) { return 40 + 53 * text; };
  const std::vector<std::vector<int>> steps = {
      {0}, {1}, {0, 1}, {2, 1, 0}, {2, 1, 0, 2, 1}, {0, 1, 2, 0, 1, 2, 0, 1}};
  std::vector<std::vector<ModelRunner::Sequence>> sequences;
  for (const std::vector<int>& texts : steps) {
    auto& of = sequences.emplace_back();
    for (const int text : texts) {
      of.push_back(runner.start(512));
      ModelRunner::Feed feed{&of.back(), {}};
      for (int i = 0; i < length_of(text); ++i) feed.tokens.push_back(token_of(text, i));
      runner.step({&feed, 1});
    }
  }
  // Over the ends of pages, which are those of spans too.
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  for (int i = 0; i < 230; ++i) {
    std::map<int, std::vector<float>> alone;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      std::vector<ModelRunner::Feed> feeds;
      for (std::size_t row = 0; row < steps[s].size(); ++row) {
        const int text = steps[s][row];
        feeds.push_back({&sequences[s][row], {token_of(text, length_of(text) + i)}});
      }
      const std::vector<float> logits = runner.step(feeds);
      ASSERT_EQ(logits.size(), steps[s].size() * vocab);
      for (std::size_t row = 0; row < steps[s].size(); ++row) {
        const std::span<const float> of = std::span(logits).subspan(row * vocab, vocab);
        const auto first = alone.try_emplace(steps[s][row], of.begin(), of.end()).first;
        ASSERT_TRUE(std::ranges::equal(first->second, of))
            << "token " << i << ", row " << row << " of " << steps[s].size();
      }
    }
  }
  options.device.gpu_chained = false;
  ModelRunner apart(file.path(), options);
  ASSERT_TRUE(apart.ready());
  std::vector<float> of_five[2];
  for (ModelRunner* each : {&runner, &apart}) {
    ModelRunner::Sequence sequence = each->start(512);
    for (const int end : {length_of(0), length_of(0) + 5}) {
      ModelRunner::Feed feed{&sequence, {}};
      for (int i = end == length_of(0) ? 0 : length_of(0); i < end; ++i)
        feed.tokens.push_back(token_of(0, i));
      of_five[each == &apart] = each->step({&feed, 1});
    }
  }
  EXPECT_TRUE(std::ranges::equal(of_five[0], of_five[1]));
}

}  // namespace
}  // namespace tessera::testing
