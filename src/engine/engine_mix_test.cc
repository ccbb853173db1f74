// Random mixes of requests with random cancels, with steps begun ahead and without: each answer
// equals that of the request alone, in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine_fixture.h"

namespace tessera {
namespace {

class Mix {
 public:
  explicit Mix(unsigned seed) : random_(seed) {}

  void run() {
    const EngineSetup setup = random_setup();
    std::vector<GenerationRequest> requests;
    for (int i = draw(4, 12); i-- > 0;) requests.push_back(random_request(setup));

    TestEngine engine(setup);
    std::vector<Collector> collectors;
    std::vector<RequestId> ids;
    std::vector<bool> cancelled(requests.size(), false);
    for (const GenerationRequest& request : requests) {
      collectors.push_back(engine.submit(request));
      ids.push_back(engine.last_id);
      if (draw(0, 2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 300)));
      if (draw(0, 3) == 0) {
        const auto victim = static_cast<std::size_t>(draw(0, static_cast<int>(ids.size()) - 1));
        engine.engine->cancel(ids[victim]);
        cancelled[victim] = true;
      }
    }
    for (Collector& collector : collectors) collector.wait();
    for (std::size_t i = 0; i < requests.size(); ++i)
      compare(requests[i], collectors[i], cancelled[i], setup.options.context);
    engine.engine->drain(0);
    EXPECT_EQ(engine.pool.free_slots(), setup.layout.slots);
    for (std::size_t g = 0; g < setup.layout.groups.size(); ++g)
      EXPECT_EQ(engine.pool.free_pages(static_cast<int>(g)), setup.layout.groups[g].pages);
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  EngineSetup random_setup() {
    EngineSetup setup;
    setup.ahead = draw(0, 1) == 0;
    LocalEngineOptions& options = setup.options;
    options.parallel = draw(1, 5);
    options.max_queue = 100;
    options.max_rows = draw(options.parallel, 40);
    options.max_logit_rows = draw(options.parallel, 12);
    options.prefill_chunk = draw(1, 40);
    options.prompts_alone = draw(0, 1) == 0;
    setup.layout = {.groups = {}, .slots = draw(options.parallel, 6), .max_chunk = draw(1, 40)};
    for (int g = draw(0, 2); g-- > 0;) {
      const int window = draw(0, 1) * draw(1, 100);
      setup.layout.groups.push_back({.window = window, .pages = draw(5, 12)});
    }
    options.context = draw(64, 300);
    return setup;
  }

  GenerationRequest random_request(const EngineSetup& setup) {
    GenerationRequest request;
    for (int i = draw(1, std::min(150, setup.options.context - 1)); i-- > 0;)
      request.prompt.push_back(draw(0, 255));
    request.max_tokens = draw(0, 5) == 0 ? -1 : draw(0, 60);
    SamplingParams& sampling = request.sampling;
    sampling.temperature = draw(0, 2) == 0 ? 0.0f : 1.0f;
    sampling.seed = static_cast<std::uint64_t>(draw(0, 1000));
    if (draw(0, 2) == 0) sampling.top_k = draw(1, 50);
    if (draw(0, 2) == 0) sampling.top_p = 0.9f;
    if (draw(0, 3) == 0) sampling.repetition_penalty = 1.3f;
    if (draw(0, 3) == 0) sampling.frequency_penalty = 0.5f;
    if (draw(0, 3) == 0) request.stop = {"a", "xy"};
    request.ignore_eos = draw(0, 1) == 0;
    request.top_logprobs = draw(0, 1) == 0 ? -1 : draw(0, 3);
    request.prompt_logprobs = draw(0, 3) == 0;
    return request;
  }

  static Collector alone(const GenerationRequest& request, int context) {
    EngineSetup setup;
    setup.options.context = context;
    return TestEngine(setup).run(request);
  }

  void compare(const GenerationRequest& request, const Collector& mixed, bool may_be_cancelled,
               int context) {
    ASSERT_TRUE(mixed.finish()) << mixed.error()->message;
    const Collector expected = alone(request, context);
    ASSERT_TRUE(expected.finish());
    std::vector<TokenId> ids = expected.ids();
    if (mixed.finish()->reason == FinishReason::cancelled) {
      EXPECT_TRUE(may_be_cancelled);
      ASSERT_LE(mixed.ids().size(), ids.size());
      ids.resize(mixed.ids().size());
      EXPECT_EQ(mixed.ids(), ids);
      return;
    }
    EXPECT_EQ(mixed.ids(), ids);
    EXPECT_EQ(mixed.text(), expected.text());
    EXPECT_EQ(mixed.finish()->reason, expected.finish()->reason);
    EXPECT_EQ(mixed.finish()->stop_string, expected.finish()->stop_string);
    EXPECT_EQ(mixed.finish()->stop_token, expected.finish()->stop_token);
    EXPECT_EQ(mixed.finish()->usage.generated_tokens, expected.finish()->usage.generated_tokens);
    ASSERT_EQ(mixed.prompt_tokens().size(), expected.prompt_tokens().size());
    EXPECT_EQ(mixed.prompt_tokens().size(),
              request.prompt_logprobs ? request.prompt.size() - 1 : 0u);
    for (std::size_t i = 0; i < mixed.prompt_tokens().size(); ++i)
      EXPECT_EQ(mixed.prompt_tokens()[i].logprob, expected.prompt_tokens()[i].logprob);
  }

  std::mt19937 random_;
};

TEST(EngineMix, AnswersDoNotDependOnCompany) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Mix(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
