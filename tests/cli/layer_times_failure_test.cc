// Layers that cannot be measured: who is told.
#include <gtest/gtest.h>

#include "cli/layer_times.h"
#include "tests/cli/capability_rig.h"

namespace tessera::testing {
namespace {

TEST(LayerTimesFailure, IsCounted) {
  const Result<cli::Config> config = resolve({{"placement.layer_times", {"measure"}}});
  ASSERT_TRUE(config);
  Inventory inventory = probe_inventory(1);
  inventory.devices.push_back(inventory.devices.front());
  const PlanOptions options;
  MetricsRegistry metrics;
  const cli::OpenShard open = [](const DeviceInventory&,
                                 const ShardLayout&) -> Result<std::unique_ptr<Shard>> {
    return Error::make(ErrorCode::exhausted, "no such memory");
  };
  const cli::LayerTimesFound found = cli::add_layer_times({.config = *config,
                                                           .model = capability_model(),
                                                           .options = options,
                                                           .workers = {},
                                                           .metrics = metrics},
                                                          open, inventory);
  EXPECT_TRUE(found.warnings.empty());
  EXPECT_NE(found.unmeasured.find("no such memory"), std::string::npos) << found.unmeasured;
  EXPECT_FALSE(inventory.devices.front().times);
  const auto failures = [&](const char* reason) {
    return metrics.counter("tessera_layer_times_failures_total", "", {{"reason", reason}}).value();
  };
  EXPECT_EQ(failures("cut_by_bytes"), 1u);
  EXPECT_EQ(failures("kept_before"), 0u);
}

}  // namespace
}  // namespace tessera::testing
