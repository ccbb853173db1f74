// An embedding table in pinned memory of the host: a GPU's rows have the same bits.
#include <gtest/gtest.h>

#include <map>

#include "tests/golden_data.h"
#include "tests/gpu/gpu_fixture.h"
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
    ASSERT_EQ(runner.plan().shards[0].layout.table_on_host, host);
    for (const int rows : {2, 6}) {
      const std::vector<float> logits = runner.logits(ids, rows);
      if (!host)
        expected[rows] = logits;
      else
        EXPECT_TRUE(logits == expected[rows]) << rows << " rows a step";
    }
  }
}

}  // namespace
}  // namespace tessera::testing
