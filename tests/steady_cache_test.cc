// Experts that come while a model serves are copied beside its steps: neither a step nor the copy
// allocates anything.
#include <gtest/gtest.h>

#include "tests/allocation_hook.h"
#include "tests/expert_models.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

// Steps of one token, and how often they allocated.
std::int64_t allocations_of(ModelRunner& runner, std::span<const TokenId> ids) {
  ModelRunner::Sequence sequence = runner.start(static_cast<int>(ids.size()));
  std::int64_t counted = 0;
  for (std::size_t at = 0; at < ids.size(); ++at) {
    sequence.state.extend(1);
    const SequenceRows rows{.n_rows = 1,
                            .first_position = static_cast<int>(at),
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()};
    const std::int64_t before = allocations();
    EXPECT_TRUE(runner.pipeline().forward({.tokens = ids.subspan(at, 1), .sequences = {&rows, 1}}));
    counted += allocations() - before;
    sequence.state.trim(static_cast<int>(at) + 1);
  }
  return counted;
}

TEST(SteadyCache, ExpertsComeWithoutAllocations) {
  const std::vector<TokenId> ids = expert_prompt("qwen35moe", 300);
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  RunnerOptions options{.expert_resident = 25.0, .expert_spare = 2};
  options.device.experts.metrics = &metrics;
  ModelRunner runner(expert_model("qwen35moe"), options);
  ASSERT_TRUE(runner.ready());
  allocations_of(runner, std::span(ids).first(1));  // an expert comes at its second choice
  const std::uint64_t before = metrics.cache_admit.value();
  std::int64_t counted = 0;
  for (int i = 0; i < 100 && metrics.cache_admit.value() < before + 3; ++i)
    counted += allocations_of(runner, ids);
  EXPECT_GE(metrics.cache_admit.value(), before + 3);
  EXPECT_EQ(counted, 0);
}

}  // namespace
}  // namespace tessera::testing
