#include "plan/step_rows.h"

#include <algorithm>

namespace tessera {
namespace {

// An H200 computes so many rows while all experts of a mixture cross to it (docs/results-gpu.md).
constexpr int kRowsWhileAllCross = kMostPrefillChunk;

struct Experts {
  std::int64_t here = 0, away = 0;
};

Experts count_experts(const Plan& plan) {
  Experts sum;
  for (const ShardPlan& shard : plan.shards) {
    sum.here += shard.experts;
    sum.away += shard.experts_host + shard.experts_worker;
  }
  return sum;
}

bool crosses(const ShardPlan& shard) {
  return shard.streamed_bytes > 0;
}

int tables_away(const Plan& plan) {
  return static_cast<int>(std::count_if(
      plan.shards.begin(), plan.shards.end(),
      [](const ShardPlan& shard) { return shard.layout.table_device_rows.has_value(); }));
}

}  // namespace

std::vector<int> step_rows(const Plan& least) {
  // Of several devices a step's pieces are shorter, and experts cross for each.
  const bool one_crosses = least.shards.size() == 1 && crosses(least.shards.front());
  const auto [here, away] = count_experts(least);
  const std::int64_t tokens = std::int64_t{least.context} * least.parallel;
  std::vector<int> all;
  for (int rows = one_crosses ? kMostPrefillChunk : kGpuStepRows; rows > kLeastStepRows;
       rows /= 2) {
    const std::int64_t fewer = rows / 2;
    const bool fewer_do =
        fewer >= tokens || fewer * (here + away) >= std::int64_t{kRowsWhileAllCross} * away;
    if (rows <= kGpuStepRows || !fewer_do) all.push_back(rows);
  }
  return all;
}

bool rows_cost_little(const Plan& larger, const Plan& least) {
  if (larger.context < least.context || tables_away(larger) > tables_away(least)) return false;
  for (std::size_t i = 0; i < std::min(larger.shards.size(), least.shards.size()); ++i)
    if (crosses(least.shards[i]) && !crosses(larger.shards[i])) return false;
  return 8 * count_experts(larger).away <= 9 * count_experts(least).away;
}

}  // namespace tessera
