#include "plan/placement.h"

#include <gtest/gtest.h>

#include <set>

#include "plan/plan.h"

namespace tessera {
namespace {

TEST(Placement, NothingSaidIsOneDevice) {
  const Result<Placement> placement = parse_placement({});
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->devices, std::vector<DeviceName>{DeviceName{}});
  EXPECT_TRUE(placement->layer_weights.empty());
}

TEST(Placement, ReadsDevicesWeightsAndBudgets) {
  const Result<Placement> placement = parse_placement(
      {.devices = "cpu:2,cpu:0", .layer_split = "1.5,2e1", .budgets = {{"cpu:0", 100}}});
  ASSERT_TRUE(placement) << placement.error().message;
  ASSERT_EQ(placement->devices.size(), 2u);
  EXPECT_EQ(placement->devices[0].text(), "cpu:2");
  EXPECT_EQ(placement->devices[1].text(), "cpu:0");
  EXPECT_EQ(placement->layer_weights, (std::vector<double>{1.5, 20}));
  ASSERT_EQ(placement->budgets.size(), 1u);
  EXPECT_EQ(placement->budgets[0].device.text(), "cpu:0");
  EXPECT_EQ(placement->budgets[0].bytes, 100);
  const Result<Placement> experts =
      parse_placement({.budgets = {{"worker:1", 9}}, .expert_workers = {{.worker = "1"}}});
  ASSERT_TRUE(experts) << experts.error().message;
  EXPECT_EQ(experts->budgets[0].device.text(), "worker:1");
}

TEST(Placement, PlainBudgetIsTheOnlyDevices) {
  for (const char* devices : {"", "cpu", "cpu:0"}) {
    const Result<Placement> placement = parse_placement({.devices = devices, .budgets = {{"", 7}}});
    ASSERT_TRUE(placement) << placement.error().message;
    ASSERT_EQ(placement->budgets.size(), 1u);
    EXPECT_EQ(placement->budgets[0].device, placement->devices[0]);
  }
}

TEST(Placement, RefusalsNameTheFlag) {
  const struct {
    PlacementText text;
    const char* part;
  } cases[] = {
      {{.devices = "cpu:0,,cpu:1"}, "--target-devices: '' is no device"},
      {{.devices = "cuda"}, "'cuda' is no device"},
      {{.devices = "cuda:"}, "'cuda:' is no device"},
      {{.devices = "hip:-1"}, "'hip:-1' is no device"},
      {{.devices = "cuda:0,cuda:0"}, "cuda:0 stands there twice"},
      {{.devices = "cuda:0,cpu,cpu:0"}, "cpu is all cores"},
      {{.devices = "cpu:-1"}, "'cpu:-1'"},
      {{.devices = "cpu:"}, "'cpu:'"},
      {{.devices = "cpu:1x"}, "'cpu:1x'"},
      {{.devices = "cpu:99999999999"}, "'cpu:99999999999'"},
      {{.devices = "cpu:1,cpu:1"}, "cpu:1 stands there twice"},
      {{.devices = "cpu:01,cpu:1"}, "cpu:1 stands there twice"},
      {{.devices = "cpu,cpu:1"}, "cpu is all cores"},
      {{.layer_split = "1,1"}, "--target-devices"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1"}, "1 weights for 2 devices"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1,0"}, "'0': give numbers above 0"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1,-2"}, "'-2'"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "nan,1"}, "'nan'"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1,inf"}, "'inf'"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1,1e999"}, "'1e999'"},
      {{.devices = "cpu:0,cpu:1", .layer_split = "1;1"}, "'1;1'"},
      {{.devices = "cpu:0,cpu:1", .budgets = {{"", 5}}}, "say whose it is"},
      {{.devices = "cpu:0,cpu:1", .budgets = {{"cpu:2", 5}}}, "cpu:2 holds no layers"},
      {{.devices = "cpu:0", .budgets = {{"cpu", 5}}}, "cpu holds no layers"},
      {{.budgets = {{"worker:1", 5}}, .expert_workers = {{.worker = "0"}}},
       "worker:1 holds no layers"},
      {{.devices = "cpu:0", .budgets = {{"gpu", 5}}}, "--budget: 'gpu'"},
      {{.devices = "cpu:0", .budgets = {{"cpu:0", 5}, {"", 6}}}, "cpu:0 has two"},
      {{.devices = "cpu:0", .budgets = {{"cpu:0", 0}}}, "--budget cpu:0: a budget is at least one"},
      {{.devices = "cpu:0,cpu:1", .budgets = {{"", 0}}}, "--budget: a budget is at least one"},
      {{.budgets = {{"worker:0", 0}}, .expert_workers = {{.worker = "0"}}}, "at least one byte"},
  };
  for (const auto& [text, part] : cases) {
    const Result<Placement> placement = parse_placement(text);
    ASSERT_FALSE(placement) << part;
    EXPECT_EQ(placement.error().code, ErrorCode::invalid);
    EXPECT_NE(placement.error().message.find(part), std::string::npos) << placement.error().message;
  }
}

Result<Inventory> devices(const char* names, int threads,
                          std::vector<PlacementText::Budget> budgets = {}) {
  TESSERA_ASSIGN(const Placement placement,
                 parse_placement({.devices = names, .budgets = std::move(budgets)}));
  return probe_inventory(placement, threads);
}

TEST(Inventory, TeamsHaveTheirOwnCores) {
  const int cores = probe_inventory(0).devices.front().threads;
  for (const char* names : {"cpu:0,cpu:1", "cpu:1", "cpu:0,cpu:1,cpu:2"}) {
    // Teams without cores of their own are asked for with their threads.
    const bool fit = names[std::string_view(names).size() - 1] - '0' < cores;
    const Result<Inventory> alone = devices(names, 0);
    EXPECT_EQ(static_cast<bool>(alone), fit) << names;
    const Result<Inventory> inventory = fit ? alone : devices(names, 3);
    ASSERT_TRUE(inventory) << inventory.error().message;
    std::set<int> seen;
    std::size_t bound = 0;
    for (const DeviceInventory& device : inventory->devices) {
      EXPECT_GE(device.threads, 1);
      EXPECT_TRUE(device.cpus.empty() ||
                  device.cpus.size() == static_cast<std::size_t>(device.threads));
      seen.insert(device.cpus.begin(), device.cpus.end());
      bound += device.cpus.size();
      EXPECT_EQ(device.name, fmt::format("cpu:{}", device.number));
    }
    EXPECT_EQ(seen.size(), bound) << names;
    EXPECT_LE(static_cast<int>(seen.size()), cores);
  }
}

TEST(Inventory, TeamsBeyondTheCoresAreRefused) {
  const int cores = probe_inventory(0).devices.front().threads;
  const std::string names = fmt::format("cpu:0,cpu:{}", cores);
  const Result<Inventory> refused = devices(names.c_str(), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid);
  EXPECT_NE(refused.error().message.find(fmt::format("cpu:{} makes {} teams", cores, cores + 1)),
            std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find(fmt::format("enough for {}", cores)), std::string::npos)
      << refused.error().message;
}

TEST(Inventory, ThreadsAreSharedOut) {
  const Result<Inventory> inventory = devices("cpu:0,cpu:1,cpu:2", 7);
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->devices[0].threads, 3);
  EXPECT_EQ(inventory->devices[1].threads, 2);
  EXPECT_EQ(inventory->devices[2].threads, 2);
  const Result<Inventory> few = devices("cpu:0,cpu:1,cpu:2", 2);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::invalid);
}

TEST(Inventory, BudgetsGoToTheirDevices) {
  const Result<Inventory> inventory = devices("cpu:0,cpu:1", 2, {{"cpu:1", 12345}});
  ASSERT_TRUE(inventory);
  EXPECT_FALSE(inventory->devices[0].budget);
  EXPECT_EQ(inventory->devices[1].budget, 12345);
}

TEST(Inventory, AWorkersSpeedsAreAsItSays) {
  const Result<Placement> placement = parse_placement({.devices = "worker:0"});
  ASSERT_TRUE(placement);
  const WorkerInventory worker{
      .name = placement->devices[0], .threads = 1, .bytes_per_s = 2e10, .op_per_s = 3e11};
  const Result<Inventory> inventory = probe_inventory(*placement, 1, {&worker, 1});
  ASSERT_TRUE(inventory) << inventory.error().message;
  EXPECT_EQ(inventory->devices[0].bytes_per_s, 2e10);
  EXPECT_EQ(inventory->devices[0].op_per_s, 3e11);
}

// A worker's GPU has a memory and a speed of its own, and takes no core.
TEST(Inventory, AWorkersGpuIsNoPartOfThisMachine) {
  constexpr std::int64_t kMemory = std::int64_t{80} << 30;
  const Result<Placement> placement = parse_placement({.devices = "cpu,worker:0"});
  ASSERT_TRUE(placement);
  const WorkerInventory worker{.name = placement->devices[1],
                               .kind = DeviceKind::cuda,
                               .threads = 16,
                               .bytes_per_s = 4e12,
                               .memory_total = kMemory,
                               .memory_free = kMemory - 1,
                               .budget = kMemory / 2};
  const Result<Inventory> inventory = probe_inventory(*placement, 7, {&worker, 1});
  ASSERT_TRUE(inventory) << inventory.error().message;
  const DeviceInventory& cpu = inventory->devices[0];
  const DeviceInventory& gpu = inventory->devices[1];
  EXPECT_EQ(cpu.threads, 7);
  EXPECT_EQ(gpu.kind, DeviceKind::cuda);
  EXPECT_TRUE(gpu.remote);
  EXPECT_NE(gpu.memory, cpu.memory);
  EXPECT_EQ(gpu.memory_total, kMemory);
  EXPECT_EQ(gpu.memory_free, kMemory - 1);
  EXPECT_EQ(gpu.budget, kMemory / 2);
  EXPECT_EQ(gpu.speed, 4e12 / kThreadBytesPerSecond);
}

}  // namespace
}  // namespace tessera
