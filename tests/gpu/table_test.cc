// An embedding table in pinned memory of the host, or a part of it there: a GPU's rows have the
// same bits.
#include <gtest/gtest.h>

#include <map>

#include "device/gpu/gpu_layout.h"
#include "tests/golden_data.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/on_gpu.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

class GpuTable : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuTable, ::testing::Values("qwen35moe", "qwen35"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuTable, OnTheHostHasTheSameBits) {
  const GoldenData golden = GoldenData::load(golden_path(GetParam(), ".bin"));
  const std::span<const TokenId> ids = golden.ints("p33_ids").first(6);
  std::map<int, std::vector<float>> expected;
  for (const auto table : {PlanOptions::Table::device, PlanOptions::Table::host}) {
    RunnerOptions options{.placement = gpu_placement(), .table = table};
    options.device.gpu_plugins = plugin_folder();
    ModelRunner runner(golden_path(GetParam(), "-bf16.gguf"), options);
    ASSERT_TRUE(runner.ready());
    const bool host = table == PlanOptions::Table::host;
    ASSERT_EQ(runner.plan().shards[0].layout.table_device_rows.has_value(), host);
    for (const int rows : {2, 6}) {
      const std::vector<float> logits = runner.logits(ids, rows);
      if (!host)
        expected[rows] = logits;
      else
        EXPECT_TRUE(logits == expected[rows]) << rows << " rows a step";
    }
  }
}

// Of a plan that lacks room for half of it, with tokens on both sides of the border.
TEST_P(GpuTable, InTwoPartsHasTheSameBits) {
  for (const BlockType type : {BlockType::F16, BlockType::Q4_K}) {
    const TypedModel file(GetParam(), type);
    RunnerOptions options = on_gpu();
    options.context = 64;
    options.prefill_chunk = options.logit_rows = 16;
    options.table = PlanOptions::Table::device;
    ModelRunner whole(file.path(), options);
    ASSERT_TRUE(whole.ready());
    const ShardPlan& there = whole.plan().shards[0];
    ShardLayout host = there.layout;
    host.table_device_rows = 0;
    const std::int64_t table = gpu_table_bytes(whole.model(), host);
    options.table = PlanOptions::Table::automatic;
    options.budget = there.total_bytes() - table / 2;
    ModelRunner split(file.path(), options);
    ASSERT_TRUE(split.ready());
    const ShardPlan& plan = split.plan().shards[0];
    ASSERT_EQ(plan.experts, there.experts);
    ASSERT_TRUE(plan.layout.table_device_rows);
    const TokenId border = *plan.layout.table_device_rows, end = split.spec().n_vocab;
    ASSERT_GT(border, 16);
    ASSERT_LT(border, end - 16);
    const std::vector<TokenId> ids = {border, 0, border - 1, end - 1, border + 9, border - 16};
    for (const int rows : {1, 6})
      EXPECT_TRUE(split.logits(ids, rows) == whole.logits(ids, rows))
          << block_type_name(type) << ", " << rows << " rows a step";
  }
}

}  // namespace
}  // namespace tessera::testing
