// A model whose routed experts are computed in worker processes gives the bits of the plain run
// with payloads of f32, with quantised weights too: for every family, any share of residents, no
// worker, one or two, both transports. What 16 bits change is bounded; int16 keeps
// log-probabilities within 2e-2 (and greedy tokens: greedy_test.cc). What modes and payloads save
// is counted. What happens to a worker that fails is in expert_faults_test.cc.
#include <gtest/gtest.h>

#include "experts/expert_worker.h"
#include "tests/expert_models.h"
#include "tests/worker/expert_rig.h"
#include "tests/worker/starts.h"

namespace tessera::testing {
namespace {

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
  std::string model() const { return expert_model(GetParam()); }
  std::vector<TokenId> ids(std::size_t n) const { return expert_prompt(GetParam(), n); }
  std::vector<float> plain(std::span<const TokenId> prompt) const {
    ModelRunner runner(model(), {.threads = 1});
    return runner.ready() ? runner.logits(prompt, 512) : std::vector<float>();
  }
};
INSTANTIATE_TEST_SUITE_P(Models, WorkerExperts, ::testing::ValuesIn(kExpertModels),
                         [](const auto& info) { return info.param; });

// Without a worker the host computes what is away, so no link is asked.
struct Cell {
  int workers;
  Link link;
};
constexpr Cell kCells[] = {
    {0, Link::shared}, {1, Link::shared}, {1, Link::stream}, {2, Link::shared}, {2, Link::stream}};

TEST_P(WorkerExperts, AnyShareOfResidentsAnyWorkersAnyTransport) {
  const std::vector<TokenId> prompt = ids(120);
  const std::vector<float> whole = plain(prompt);
  ASSERT_FALSE(whole.empty());
  for (const double resident : {100.0, 60.0, 10.0, 0.0}) {
    for (const auto& [workers, link] : kCells) {
      SCOPED_TRACE(
          fmt::format("{} % resident, {} workers, {}", resident, workers, link_name(link)));
      ExpertRig rig;
      rig.link = link;
      if (workers > 0) rig.waits_for_its_worker();
      ModelRunner runner(model(), rig.runner(model(), resident, workers));
      ASSERT_TRUE(runner.ready());
      EXPECT_TRUE(runner.logits(prompt, 512) == whole);
      EXPECT_TRUE(runner.logits(prompt, 7) == whole);
      EXPECT_EQ(rig.fallbacks(), 0);
      EXPECT_EQ(rig.metrics.worker.pairs.value() > 0, resident < 100.0 && workers > 0);
      EXPECT_EQ(rig.metrics.host.pairs.value() > 0, resident < 100.0 && workers == 0);
    }
  }
}

// Experts come from the worker while it computes others, and it dies in the middle of the answer.
TEST_P(WorkerExperts, ExpertsThatComeAndAWorkerThatGoes) {
  const std::vector<TokenId> prompt = ids(120);
  const std::vector<float> whole = plain(prompt);
  ExpertRig rig;
  RunnerOptions options = rig.runner(model(), 25.0, 1);
  options.expert_spare = 2;
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  ModelRunner::Sequence sequence = runner.start(120);
  std::vector<float> got;
  for (std::size_t at = 0; at < prompt.size(); ++at) {
    if (at == 60) send_signal(rig.pid(), SIGKILL);
    ModelRunner::Feed feed{&sequence, {prompt[at]}};
    const std::vector<float> row = runner.step({&feed, 1});
    got.insert(got.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(got == whole);
  EXPECT_GT(rig.metrics.cache_admit.value(), 0u);
  EXPECT_GT(rig.fallbacks(), 0);
}

// A worker has less room than it was thought to have: it takes the experts of the layers that fit,
// and the host computes the others, with the same bits. So does the worker that comes after it.
TEST_P(WorkerExperts, AWorkerWithLessRoomHasWhatFits) {
  constexpr int kRows = 64;
  const std::vector<TokenId> prompt = ids(kRows);
  const std::vector<float> whole = plain(prompt);
  const Model opened = *Model::open(model());
  std::vector<LayerExperts> all(opened.spec().layers.size());
  int experts = 0;
  for (std::size_t l = 0; l < all.size(); ++l)
    if (const auto& moe = opened.spec().layers[l].moe) {
      all[l].home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::worker(0));
      experts += moe->n_expert;
    }
  const ExpertWorkerFootprint takes = expert_worker_footprint(
      opened, expert_worker_layout(opened.spec(), all, ExpertHome::worker(0), kRows), 1);
  for (const Link link : kLinks) {
    SCOPED_TRACE(link_name(link));
    ExpertRig rig;
    rig.link = link;
    rig.more_words = {"--budget", std::to_string(takes.total() - takes.weights / 3)};
    RunnerOptions options = rig.runner(model(), 0.0, 1);
    options.prefill_chunk = kRows - 1;  // and a row for the sequence
    ModelRunner runner(model(), options);
    ASSERT_TRUE(runner.ready());
    const auto released = [&] {
      return rig.registry.gauge("tessera_worker_experts_released", "", {{"worker", "worker:0"}})
          .value();
    };
    EXPECT_GT(released(), 0);
    EXPECT_LT(released(), experts);
    EXPECT_TRUE(runner.logits(prompt, kRows - 1) == whole);
    EXPECT_GT(rig.metrics.worker.pairs.value(), 0u);
    EXPECT_GT(rig.metrics.host.pairs.value(), 0u);
    EXPECT_GT(rig.fallbacks("no_room"), 0);
    EXPECT_EQ(rig.fallbacks(), rig.fallbacks("no_room"));
    EXPECT_EQ(rig.deaths("refused"), 0u);

    const double before = released();
    const std::uint64_t pairs = rig.metrics.worker.pairs.value();
    const std::uint64_t started = worker::all_starts(rig.registry, "worker:0");
    send_signal(rig.pid(), SIGKILL);
    rig.revive(Fault::kill);
    ASSERT_TRUE(eventually(
        [&] { return worker::all_starts(rig.registry, "worker:0") > started && rig.usable(); }));
    EXPECT_TRUE(runner.logits(prompt, kRows - 1) == whole);
    EXPECT_GT(rig.metrics.worker.pairs.value(), pairs);
    EXPECT_EQ(released(), before);
  }
  ExpertRig rig;
  rig.more_words = {"--budget", std::to_string(takes.total() - takes.weights / 3)};
  rig.options.required = true;
  rig.may_fail = true;
  ModelRunner runner(model(), rig.runner(model(), 0.0, 1));
  ASSERT_TRUE(rig.failure) << "nobody else may compute the others";
  EXPECT_NE(rig.failure->message.find("memory"), std::string::npos) << rig.failure->message;
}

class WorkerPayloads : public WorkerExperts {};
INSTANTIATE_TEST_SUITE_P(Models, WorkerPayloads,
                         ::testing::Values("qwen35moe", "laguna", "gemma4moe"),
                         [](const auto& info) { return info.param; });

TEST_P(WorkerPayloads, TransportsAndModes) {
  const std::vector<TokenId> prompt = ids(64);
  const std::vector<float> whole = plain(prompt);
  const std::size_t vocab = whole.size() / prompt.size();
  for (const ExpertPayload payload :
       {ExpertPayload::f32, ExpertPayload::f16, ExpertPayload::bf16, ExpertPayload::int16}) {
    std::vector<float> first;
    for (const Link link : {Link::shared, Link::stream}) {
      for (const ExpertMode mode : {ExpertMode::batched, ExpertMode::stream}) {
        ExpertRig rig;
        rig.waits_for_its_worker();
        rig.options.mode = mode;
        rig.options.payload = payload;
        rig.link = link;
        ModelRunner runner(model(), rig.runner(model(), 30.0, 1));
        ASSERT_TRUE(runner.ready());
        const std::vector<float> got = runner.logits(prompt, 512);
        const std::vector<double> rows = row_differences(got, whole, vocab);
        // bf16 keeps 8 bits of a number: a row whose choice of an expert was near a tie may take
        // another one, and is far off then.
        if (payload == ExpertPayload::bf16) {
          EXPECT_LT(rows[rows.size() / 2], 5e-2);
        } else {
          EXPECT_LE(rows.back(), payload == ExpertPayload::f32 ? 0.0 : 2e-2);
        }
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first) << "the same bits on any transport in any mode";
        EXPECT_EQ(rig.fallbacks(), 0);
      }
    }
  }
}

// Every routed expert at the worker, so that all rows and all sums are rounded on their way.
TEST_P(WorkerPayloads, Int16StaysNearInEveryRowOverEveryLink) {
  const std::vector<TokenId> prompt = ids(300);
  const std::vector<float> whole = plain(prompt);
  ASSERT_FALSE(whole.empty());
  for (const Link link : kLinks) {
    SCOPED_TRACE(link_name(link));
    ExpertRig rig;
    rig.waits_for_its_worker();
    rig.options.payload = ExpertPayload::int16;
    rig.link = link;
    ModelRunner runner(model(), rig.runner(model(), 0.0, 1));
    ASSERT_TRUE(runner.ready());
    const std::vector<float> got = runner.logits(prompt, 512);
    const double largest = row_differences(got, whole, whole.size() / prompt.size()).back();
    EXPECT_GT(largest, 0.0) << "nothing was rounded";
    EXPECT_LE(largest, 2e-2);
    EXPECT_EQ(rig.metrics.host.pairs.value(), 0u);
    EXPECT_GT(rig.metrics.worker.pairs.value(), 0u);
  }
}

// What a long prompt makes of jobs and of bytes, which no clock decides.
struct Traffic {
  std::uint64_t calls, pairs, out, in;
};
Traffic traffic_of_a_prompt(ExpertMode mode, ExpertPayload payload) {
  const std::string path = expert_model("bundled");
  ExpertRig rig;
  rig.waits_for_its_worker();
  rig.options.mode = mode;
  rig.options.payload = payload;
  ModelRunner runner(path, rig.runner(path, 50.0, 1));
  EXPECT_TRUE(runner.ready());
  (void)runner.logits(expert_prompt("bundled", 1000), 512);
  return {.calls = rig.metrics.worker.calls.value(),
          .pairs = rig.metrics.worker.pairs.value(),
          .out = rig.metrics.bytes_out.value(),
          .in = rig.metrics.bytes_in.value()};
}

TEST(WorkerTraffic, BatchedMakesATenthOfTheCallsOfStream) {
  const Traffic stream = traffic_of_a_prompt(ExpertMode::stream, ExpertPayload::f32);
  const Traffic batched = traffic_of_a_prompt(ExpertMode::batched, ExpertPayload::f32);
  std::printf("calls: %ju of stream, %ju of batched\n", std::uintmax_t{stream.calls},
              std::uintmax_t{batched.calls});
  EXPECT_EQ(batched.pairs, stream.pairs);
  EXPECT_GT(batched.calls, 0u);
  EXPECT_LE(10 * batched.calls, stream.calls);
}

// Rows go out in 2 bytes a number instead of 4, beside the pairs; sums come back in 2 instead of 8.
TEST(WorkerTraffic, SixteenBitsTakeHalfOfTheBytes) {
  const Traffic whole = traffic_of_a_prompt(ExpertMode::batched, ExpertPayload::f32);
  const auto all = [](const Traffic& t) { return static_cast<double>(t.out + t.in); };
  for (const ExpertPayload payload :
       {ExpertPayload::f16, ExpertPayload::bf16, ExpertPayload::int16}) {
    const Traffic half = traffic_of_a_prompt(ExpertMode::batched, payload);
    const auto part = [](std::uint64_t n, std::uint64_t of) {
      return static_cast<double>(n) / static_cast<double>(of);
    };
    std::printf("%s: %.3f of the bytes there, %.3f back, %.3f together\n",
                expert_payload_name(payload), part(half.out, whole.out), part(half.in, whole.in),
                all(half) / all(whole));
    EXPECT_EQ(half.calls, whole.calls);
    EXPECT_LE(all(half), 0.5 * all(whole));
  }
}

}  // namespace
}  // namespace tessera::testing
