// Layers of one row as one kernel (kernels/run.h), in the program: the bits of a row alone and of
// one of two, which follow each other, are those of a row among three, five or eight, whose FFNs
// are kernels that make the next layer's projections, too. And rows of one sequence have those of
// kernels that do not overlap. A dense model's row (kernels/dense_run.h) has the bits of launches
// too, whatever comes between its steps. On a GPU that has runs; a model of their shape takes 3 GB,
// twice.
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
  explicit RunModel(const char* family = "qwen35moe", const char* layers = "block_count=7")
      : path_((std::filesystem::path(::testing::TempDir()) /
               ("tessera_run_" + std::to_string(::getpid()) + ".gguf"))
                  .string()) {
    const Status written = write_synthetic_model({.family = family,
                                                  .preset = "full",
                                                  .types = "q4_k_m",
                                                  .overrides = {layers, "vocab_size=2048"}},
                                                 path_);
    EXPECT_TRUE(written) << written.error().message;
  }
  ~RunModel() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool has_runs() {
  const auto info =
      probe_gpu(device_kind_name(test_gpu().name->kind), *test_gpu().name->team, plugin_folder());
  return info && info->runs;
}

TEST(GpuRuns, HaveTheBitsOfARowAmongOthers) {
  GPU_OR_SKIP();
  if (!has_runs()) GTEST_SKIP() << "no runs";
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

// Steps of one row go to a log of states, which is settled when another sequence, a step of two
// rows or a new sequence comes between.
TEST(GpuRuns, KeepADenseRowsBitsWhateverComesBetween) {
  GPU_OR_SKIP();
  if (!has_runs()) GTEST_SKIP() << "no runs";
  const RunModel file("qwen35", "block_count=5");
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.parallel = 8;
  ModelRunner runner(file.path(), options);
  ASSERT_TRUE(runner.ready());
  const auto token_of = [](int text, int at) { return TokenId{(at * (37 + text) + 11) % 2000}; };
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  constexpr int kPrompt = 9, kTokens = 150;
  const auto feed = [&](ModelRunner::Sequence& sequence, int text, int from, int to) {
    ModelRunner::Feed feed{&sequence, {}};
    for (int i = from; i < to; ++i) feed.tokens.push_back(token_of(text, i));
    return feed;
  };
  const auto begin = [&](int text) {
    ModelRunner::Sequence sequence = runner.start(256);
    ModelRunner::Feed prompt = feed(sequence, text, 0, kPrompt);
    runner.step({&prompt, 1});
    return sequence;
  };
  std::vector<std::vector<float>> alone;
  ModelRunner::Sequence first = begin(0);
  for (int i = kPrompt; i < kTokens; ++i) {
    ModelRunner::Feed one = feed(first, 0, i, i + 1);
    alone.push_back(runner.step({&one, 1}));
  }
  ModelRunner::Sequence row = begin(0), other = begin(1);
  std::vector<ModelRunner::Sequence> more;
  int others = kPrompt;
  for (int i = kPrompt; i < kTokens; ++i) {
    std::vector<ModelRunner::Feed> feeds{feed(row, 0, i, i + 1)};
    if (i % 11 == 4) feeds.push_back(feed(other, 1, others, others + 1)), ++others;
    const std::vector<float> logits = runner.step(feeds);
    ASSERT_TRUE(std::ranges::equal(std::span(logits).first(vocab),
                                   alone[static_cast<std::size_t>(i - kPrompt)]))
        << "token " << i << ", row 1 of " << feeds.size();
    if (i % 13 == 6) {
      ModelRunner::Feed between = feed(other, 1, others, others + 1 + i % 2);
      others += 1 + i % 2;
      runner.step({&between, 1});
    }
    if (i % 31 == 30) more.push_back(begin(2));
  }
}

// Runs that hand their rows from GPU to GPU, from one to eight rows a step, of which up to four are
// runs: the tokens of one GPU.
TEST(GpuRuns, HandRowsOverInTurns) {
  if (gpus(2).empty()) GTEST_SKIP() << "no second GPU to test on";
  if (!has_runs()) GTEST_SKIP() << "no runs";
  const RunModel file;
  const auto tokens_with = [&](int count, int turns) {
    RunnerOptions options;
    options.placement = gpu_placement();
    options.placement.devices = gpus(count);
    options.device.gpu_plugins = plugin_folder();
    options.parallel = 8;
    options.turns = turns;
    ModelRunner runner(file.path(), options);
    EXPECT_TRUE(runner.ready());
    std::vector<std::vector<TokenId>> tokens;
    for (const int rows : {1, 2, 3, 4, 8}) {
      std::vector<ModelRunner::Sequence> sequences;
      for (int i = 0; i < rows; ++i) sequences.push_back(runner.start(128));
      const std::vector<TokenChoice> choices(static_cast<std::size_t>(rows));
      for (int step = 0; step < 80; ++step) {
        std::vector<TokenId> ids;
        std::vector<SequenceRows> parts;
        std::vector<std::int32_t> logit_rows;
        for (int i = 0; i < rows; ++i) {
          ModelRunner::Sequence& sequence = sequences[static_cast<std::size_t>(i)];
          ids.push_back(step == 0 ? TokenId{7 + 5 * i} : token_of_choice(i));
          sequence.state.extend(1);
          parts.push_back({.first_row = i,
                           .n_rows = 1,
                           .first_position = sequence.position++,
                           .slot = sequence.state.slot(),
                           .pages = sequence.state.page_tables()});
          logit_rows.push_back(i);
        }
        const BatchView batch{
            .tokens = ids, .sequences = parts, .logit_rows = logit_rows, .choices = {choices, {}}};
        EXPECT_TRUE(runner.pipeline().may_begin(batch));
        runner.pipeline().begin(batch);
        if (step == 0) continue;
        EXPECT_TRUE(runner.pipeline().end());
        for (const ChosenToken& token : runner.pipeline().chosen())
          tokens.emplace_back().push_back(token.id);
      }
      EXPECT_TRUE(runner.pipeline().end());
    }
    return tokens;
  };
  const auto expected = tokens_with(1, 1);
  for (const int turns : {1, 3}) EXPECT_EQ(tokens_with(2, turns), expected) << turns;
}

}  // namespace
}  // namespace tessera::testing
