// Steps that are begun on the GPU, or over several, before the tokens of the ones ahead are read:
// the same tokens as one by one, whatever happens to a sequence meanwhile.
#include <gtest/gtest.h>

#include <vector>

#include "tests/golden_data.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

// The layers over `count` GPUs.
RunnerOptions on_gpus(int count, int turns = 1) {
  RunnerOptions options;
  options.turns = turns;
  options.placement = gpu_placement();
  options.placement.devices = gpus(count);
  options.device.gpu_plugins = plugin_folder();
  options.context = 128;
  return options;
}

// How many GPUs a test takes: those that are there, 3 at most.
std::vector<int> counts() {
  std::vector<int> some;
  for (int count = 1; count <= 3 && !gpus(count).empty(); ++count) some.push_back(count);
  return some;
}

struct Row {
  ModelRunner::Sequence* sequence;
  TokenId token;
  TokenChoice choice = {};
};

// Steps of one row of each sequence, in turn or begun ahead.
class Steps {
 public:
  explicit Steps(ModelRunner& runner) : pipeline_(runner.pipeline()) {}

  std::vector<TokenId> in_turn(const std::vector<Row>& rows) {
    const Status done = pipeline_.forward(next(rows));
    EXPECT_TRUE(done) << done.error().message;
    return chosen();
  }
  void begin(const std::vector<Row>& rows) {
    const BatchView batch = next(rows);
    ASSERT_TRUE(pipeline_.may_begin(batch));
    pipeline_.begin(batch);
    // It may change: nobody reads it any more.
    std::fill(tokens_.begin(), tokens_.end(), -1000);
    std::fill(choices_.begin(), choices_.end(), TokenChoice{.n_top = 3});
  }
  std::vector<TokenId> end() {
    const Status done = pipeline_.end();
    EXPECT_TRUE(done) << done.error().message;
    return chosen();
  }

 private:
  BatchView next(const std::vector<Row>& rows) {
    tokens_.clear();
    sequences_.clear();
    logit_rows_.clear();
    choices_.clear();
    for (const Row& row : rows) {
      ModelRunner::Sequence& sequence = *row.sequence;
      sequence.state.extend(1);
      logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()));
      sequences_.push_back({.first_row = static_cast<int>(tokens_.size()),
                            .n_rows = 1,
                            .first_position = sequence.position++,
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()});
      tokens_.push_back(row.token);
      choices_.push_back(row.choice);
    }
    return {tokens_, sequences_, logit_rows_, {choices_, changes_}};
  }
  std::vector<TokenId> chosen() const {
    std::vector<TokenId> ids;
    for (const ChosenToken& token : pipeline_.chosen()) ids.push_back(token.id);
    return ids;
  }

  Pipeline& pipeline_;
  std::vector<TokenId> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<TokenChoice> choices_;
  // Of the one row that asks for them.
  const std::vector<LogitChange> changes_ = {{.id = 11, .bias = 1.0f}, {.id = 7, .less = 2.0f}};
};

constexpr int kSteps = 4;

// Of the i-th sequence's step: the largest, drawn, the largest of draws, with changes, and with
// filters.
TokenChoice choice_of(std::size_t sequence, int step) {
  const double uniform = static_cast<double>((step * 7 + 3) % 10) / 10.0;
  switch (sequence) {
    case 0:
      return {};
    case 1:
      return {.temperature = 1.0f, .uniform = uniform};
    case 2:
      return {.temperature = 1.0f, .top_k = 1, .uniform = uniform};
    case 3:
      return {.temperature = 0.7f, .uniform = 1.0 - uniform, .n_changes = 2};
    case 4:
      return {.temperature = 1.2f, .top_k = 40, .top_p = 0.95f, .uniform = uniform};
    default:
      return {.temperature = 1.0f, .top_p = 0.99f, .min_p = 0.01f, .uniform = uniform};
  }
}

using Tokens = std::vector<std::vector<TokenId>>;  // by step

Tokens one_by_one(ModelRunner& runner, std::span<const std::size_t> which, int most = kSteps) {
  Steps steps(runner);
  std::vector<ModelRunner::Sequence> sequences;
  std::vector<TokenId> last;
  for (const std::size_t i : which) {
    sequences.push_back(runner.start(kSteps));
    last.push_back(static_cast<TokenId>(20 + 3 * i));
  }
  Tokens tokens;
  for (int step = 0; step < most; ++step) {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < which.size(); ++i)
      rows.push_back({&sequences[i], last[i], choice_of(which[i], step)});
    tokens.push_back(last = steps.in_turn(rows));
  }
  return tokens;
}

// `known`: the tokens of every step, which are given then instead of where they will be.
Tokens begun_ahead(ModelRunner& runner, std::span<const std::size_t> which, int most,
                   const Tokens& known = {}) {
  Steps steps(runner);
  std::vector<ModelRunner::Sequence> sequences;
  for (std::size_t i = 0; i < which.size(); ++i) sequences.push_back(runner.start(kSteps));
  Tokens tokens;
  for (int step = 0; step < most; ++step) {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < which.size(); ++i)
      rows.push_back({&sequences[i],
                      step == 0       ? static_cast<TokenId>(20 + 3 * which[i])
                      : known.empty() ? token_of_choice(static_cast<int>(i))
                                      : known[static_cast<std::size_t>(step - 1)][i],
                      choice_of(which[i], step)});
    steps.begin(rows);
    if (step > 0) tokens.push_back(steps.end());
  }
  tokens.push_back(steps.end());
  return tokens;
}

class GpuAheadTokens : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuAheadTokens, ::testing::Values("qwen3", "qwen35moe"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuAheadTokens, TokensAreThoseOfStepsInTurn) {
  const std::vector<std::size_t> rows[] = {{4}, {1, 2, 3, 5}};
  ModelRunner one(golden_path(GetParam(), "-bf16.gguf"), on_gpus(1));
  ASSERT_TRUE(one.ready());
  const int steps = emulated() ? 3 : kSteps;
  const Tokens expected[] = {one_by_one(one, rows[0], steps), one_by_one(one, rows[1], steps)};
  struct Case {
    int gpus, turns;
    bool graphs;
  };
  std::vector<Case> cases = {{1, 1, false}, {2, 2, true}, {3, 1, true}};
  if (!emulated()) cases.insert(cases.end(), {{1, 1, true}, {2, 1, false}});
  for (const auto& [count, turns, graphs] : cases) {
    if (gpus(count).empty()) continue;
    SCOPED_TRACE(fmt::format("{} GPUs, {} turns, graphs {}", count, turns, graphs));
    RunnerOptions options = on_gpus(count, turns);
    options.device.gpu_graphs = graphs;
    ModelRunner runner(golden_path(GetParam(), "-bf16.gguf"), options);
    ASSERT_TRUE(runner.ready());
    ASSERT_EQ(runner.plan().shards.size(), static_cast<std::size_t>(count * turns));
    for (const int i : {0, 1}) EXPECT_EQ(begun_ahead(runner, rows[i], steps), expected[i]) << i;
    if (graphs && count > 1 && (count == 2 || !emulated())) {
      EXPECT_EQ(begun_ahead(runner, rows[0], steps, expected[0]), expected[0]) << "known";
    }
  }
}

// A prompt's last rows may still be under way on a later GPU, where a thread drives it.
TEST_P(GpuAheadTokens, PromptsComeBetween) {
  const int parts = emulated() ? 2 : 3;
  const auto tokens = [&](int count, bool ahead) {
    ModelRunner runner(golden_path(GetParam(), "-bf16.gguf"), on_gpus(count, count == 2 ? 2 : 1));
    EXPECT_TRUE(runner.ready());
    Steps steps(runner);
    Tokens all;
    for (int round = 0; round < 2; ++round) {
      ModelRunner::Sequence sequence = runner.start(40);
      for (int part = 0; part < parts; ++part) {
        const std::vector<TokenId> ids(9, 11 + 3 * round + part);
        sequence.state.extend(9);
        const SequenceRows rows{.n_rows = 9,
                                .first_position = sequence.position,
                                .slot = sequence.state.slot(),
                                .pages = sequence.state.page_tables()};
        EXPECT_TRUE(runner.pipeline().forward({.tokens = ids, .sequences = {&rows, 1}}));
        sequence.position += 9;
      }
      all.push_back(steps.in_turn({{&sequence, 5}}));
      if (ahead) {
        steps.begin({{&sequence, all.back()[0]}});
        steps.begin({{&sequence, token_of_choice(0)}});
        all.push_back(steps.end());
        all.push_back(steps.end());
      } else {
        for (int i = 0; i < 2; ++i) all.push_back(steps.in_turn({{&sequence, all.back()[0]}}));
      }
    }
    return all;
  };
  const Tokens expected = tokens(1, false);
  for (const int count : counts()) {
    if (count == 1 && emulated()) continue;  // nothing is under way there that another drives
    EXPECT_EQ(tokens(count, true), expected) << count;
  }
}

// Its row in the step under way is computed in vain, and slot and pages are another's at once.
TEST_P(GpuAheadTokens, ASlotIsGivenAwayWhileAStepIsUnderWay) {
  RunnerOptions options = on_gpus(counts().back());
  options.parallel = 2;
  ModelRunner runner(golden_path(GetParam(), "-bf16.gguf"), options);
  ASSERT_TRUE(runner.ready());
  const std::size_t both[] = {0, 1}, other[] = {2};
  const Tokens first = one_by_one(runner, both), second = one_by_one(runner, other);

  Steps steps(runner);
  ModelRunner::Sequence stays = runner.start(kSteps), ends = runner.start(kSteps);
  const auto row = [](ModelRunner::Sequence& sequence, TokenId token, std::size_t which, int step) {
    return Row{&sequence, token, choice_of(which, step)};
  };
  steps.begin({row(stays, 20, 0, 0), row(ends, 23, 1, 0)});
  steps.begin({row(stays, token_of_choice(0), 0, 1), row(ends, token_of_choice(1), 1, 1)});
  EXPECT_EQ(steps.end(), first[0]);
  const int slot = ends.state.slot();
  ends = {};
  ModelRunner::Sequence comes = runner.start(kSteps);
  EXPECT_EQ(comes.state.slot(), slot);
  steps.begin({row(comes, 26, 2, 0), row(stays, token_of_choice(0), 0, 2)});
  EXPECT_EQ(steps.end()[0], first[1][0]);
  steps.begin({row(stays, token_of_choice(1), 0, 3), row(comes, token_of_choice(0), 2, 1)});
  EXPECT_EQ(steps.end(), (std::vector<TokenId>{second[0][0], first[2][0]}));
  EXPECT_EQ(steps.end(), (std::vector<TokenId>{first[3][0], second[1][0]}));
}

// What the host may have to choose, or has to hand on, is not begun.
TEST(GpuAhead, IsWhereTheCardSettlesEveryToken) {
  GPU_OR_SKIP();
  const auto may_begin = [](ModelRunner& runner, int rows, const TokenChoice& choice) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(rows), 7);
    const std::vector<std::int32_t> logit_rows = {rows - 1};
    return runner.pipeline().may_begin({.tokens = tokens,
                                        .sequences = {},
                                        .logit_rows = logit_rows,
                                        .choices = {.rows = {&choice, 1}}});
  };
  ModelRunner whole(golden_path("qwen35moe", "-bf16.gguf"), on_gpus(1));
  ASSERT_TRUE(whole.ready());
  EXPECT_TRUE(may_begin(whole, 1, {}));
  EXPECT_TRUE(may_begin(whole, 8, {.temperature = 0.5f, .top_k = 1 << 20}));
  EXPECT_TRUE(may_begin(whole, 1, {.temperature = 0.5f, .top_k = 1, .top_p = 0.5f}));
  EXPECT_TRUE(may_begin(whole, 1, {.top_k = 40, .top_p = 0.5f})) << "the largest";
  EXPECT_TRUE(may_begin(whole, 1, {.temperature = 0.5f, .top_k = 40}));
  EXPECT_TRUE(may_begin(whole, 1, {.temperature = 0.5f, .top_p = 0.5f}));
  EXPECT_TRUE(may_begin(whole, 8, {.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.05f}));
  EXPECT_FALSE(may_begin(whole, 9, {}));
  EXPECT_FALSE(may_begin(whole, 1, {.n_top = 0}));
  EXPECT_FALSE(may_begin(whole, 1, {.given = 3}));
  EXPECT_FALSE(whole.pipeline().may_begin({.tokens = std::vector<TokenId>{7}}));

  RunnerOptions options = on_gpus(1);
  options.expert_resident = 50.0;
  ModelRunner away(golden_path("qwen35moe", "-bf16.gguf"), options);
  ASSERT_TRUE(away.ready());
  EXPECT_FALSE(may_begin(away, 1, {}));
  options = on_gpus(1);
  options.placement.devices.insert(options.placement.devices.begin(), DeviceName{});
  options.placement.layer_weights = {1.0, 1.0};
  ModelRunner split(golden_path("qwen35moe", "-bf16.gguf"), options);
  ASSERT_TRUE(split.ready());
  EXPECT_FALSE(may_begin(split, 1, {}));
}

TEST(GpuAhead, IsWhereEveryGpuTakesFromTheOneBefore) {
  const std::vector<DeviceName> two = gpus(2);
  if (two.empty()) GTEST_SKIP() << "no second GPU to test on";
  const std::vector<TokenId> tokens = {7};
  const std::vector<std::int32_t> logit_rows = {0};
  const std::vector<TokenChoice> greedy(1), told = {{.n_top = 0}};
  const auto may_begin = [&](std::vector<DeviceName> devices,
                             const std::vector<TokenChoice>& choices, double resident = 100.0) {
    RunnerOptions options = on_gpus(1);
    options.placement.layer_weights.assign(devices.size(), 1.0);
    options.placement.devices = std::move(devices);
    if (resident < 100.0) options.expert_resident = resident;
    ModelRunner runner(golden_path("qwen35moe", "-bf16.gguf"), options);
    EXPECT_TRUE(runner.ready());
    return runner.pipeline().may_begin(
        {.tokens = tokens, .sequences = {}, .logit_rows = logit_rows, .choices = {choices, {}}});
  };
  EXPECT_TRUE(may_begin(two, greedy));
  EXPECT_FALSE(may_begin(two, told));
  EXPECT_FALSE(may_begin(two, greedy, 50.0));
  EXPECT_FALSE(may_begin({two[0], DeviceName{}, two[1]}, greedy));
  EXPECT_FALSE(may_begin({two[0], two[1], DeviceName{}}, greedy));
}

// Of which one is lost, or late.
void expect_the_end_of_all(ModelRunner& runner, int most, const std::string& message) {
  ModelRunner::Sequence sequence = runner.start(most);
  Steps steps(runner);
  steps.begin({{&sequence, 7}});
  Status status;
  for (int i = 1; i < most && status; ++i) {
    steps.begin({{&sequence, token_of_choice(0)}});
    status = runner.pipeline().end();
  }
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
  EXPECT_FALSE(runner.pipeline().may_begin({}));
  EXPECT_FALSE(runner.pipeline().forward({}));
}

TEST(GpuAhead, ALateStepIsAnErrorAndEndsBoth) {
  GPU_OR_SKIP();
  for (const int count : counts()) {
    RunnerOptions options = on_gpus(count);
    options.device.gpu_wait_s = 1e-9;
    options.context = 1024;
    ModelRunner runner(golden_path("qwen3", "-bf16.gguf"), options);
    ASSERT_TRUE(runner.ready());
    expect_the_end_of_all(runner, 900, "did not finish a step");  // one of them is late
  }
}

// Who waits for it is not waited for. In a process of its own (EMULATED_FAULT).
TEST(GpuAhead, ALostGpuEndsBoth) {
  const char* fault = std::getenv("EMULATED_FAULT");
  if (fault == nullptr) GTEST_SKIP() << "no fault is emulated";
  RunnerOptions options = on_gpus(2, /*turns=*/2);
  options.context = 1024;
  ModelRunner runner(golden_path("qwen3", "-bf16.gguf"), options);
  ASSERT_TRUE(runner.ready());
  const std::string lost(fault, std::string_view(fault).find(':'));
  expect_the_end_of_all(runner, 900, "cuda:" + lost + ": ");
}

}  // namespace
}  // namespace tessera::testing
