// Layers that cannot be measured: who is told. And on which devices they are, where some are alike.
#include <gtest/gtest.h>

#include "cli/layer_times.h"
#include "device/cpu/cpu_device.h"
#include "tests/cli/capability_rig.h"

namespace tessera::testing {
namespace {

cli::LayerTimesFound measured_afresh(const cli::OpenShard& open, Inventory& inventory,
                                     MetricsRegistry& metrics) {
  const Result<cli::Config> config = resolve({{"placement.layer_times", {"measure"}}});
  EXPECT_TRUE(config);
  const PlanOptions options;
  return cli::add_layer_times({.config = *config,
                               .model = capability_model(),
                               .options = options,
                               .workers = {},
                               .metrics = metrics},
                              open, inventory);
}

TEST(LayerTimesFailure, IsCounted) {
  Inventory inventory = probe_inventory(1);
  inventory.devices.push_back(inventory.devices.front());
  MetricsRegistry metrics;
  const cli::OpenShard open = [](const DeviceInventory&,
                                 const ShardLayout&) -> Result<std::unique_ptr<Shard>> {
    return Error::make(ErrorCode::exhausted, "no such memory");
  };
  const cli::LayerTimesFound found = measured_afresh(open, inventory, metrics);
  EXPECT_TRUE(found.warnings.empty());
  EXPECT_NE(found.unmeasured.find("no such memory"), std::string::npos) << found.unmeasured;
  EXPECT_FALSE(inventory.devices.front().times);
  const auto failures = [&](const char* reason) {
    return metrics.counter("tessera_layer_times_failures_total", "", {{"reason", reason}}).value();
  };
  EXPECT_EQ(failures("cut_by_bytes"), 1u);
  EXPECT_EQ(failures("kept_before"), 0u);
}

// Devices of these models, measured by CPU shards: on which, and whether a shard had the head.
using Measured = std::map<std::string, bool, std::less<>>;
Measured measured_on(const std::vector<std::string>& models) {
  Inventory inventory;
  for (std::size_t i = 0; i < models.size(); ++i) {
    DeviceInventory device = probe_inventory(1).devices.front();
    device.name = fmt::format("gpu:{}", i);
    device.model = models[i];
    inventory.devices.push_back(device);
  }
  Measured on;
  const cli::OpenShard open = [&](const DeviceInventory& device,
                                  const ShardLayout& layout) -> Result<std::unique_ptr<Shard>> {
    on[device.name] |= layout.head;
    TESSERA_ASSIGN(auto cpu, make_cpu_device({.threads = 1}));
    return std::unique_ptr<Shard>(
        std::make_unique<LocalShard>(std::move(cpu), layout, std::vector<int>()));
  };
  MetricsRegistry metrics;
  const cli::LayerTimesFound found = measured_afresh(open, inventory, metrics);
  EXPECT_EQ(found.unmeasured, "");
  for (const DeviceInventory& device : inventory.devices) EXPECT_TRUE(device.times) << device.name;
  return on;
}

TEST(LayerTimesOfAlike, AreMeasuredOnceAndOnTheLast) {
  Rig::get().keep_measurements_apart(true);
  EXPECT_EQ(measured_on({"A", "A"}), (Measured{{"gpu:1", true}}));
  EXPECT_EQ(measured_on({"A", "A", "B"}), (Measured{{"gpu:0", false}, {"gpu:2", true}}));
  EXPECT_EQ(measured_on({"", ""}), (Measured{{"gpu:0", false}, {"gpu:1", true}}));
  Rig::get().keep_measurements_apart(false);
}

}  // namespace
}  // namespace tessera::testing
