// Plans over several devices: every byte counted in the shard that holds it, cuts that weights and
// budgets decide, and refusals that say what would fit.
#include "plan/shard_planner.h"

#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <sstream>

#include "plan/planner_rig.h"
#include "plan/prediction.h"

namespace tessera {
namespace {

TEST(ShardPlanner, ShardsAddUpToTheWhole) {
  for (const char* name : {"qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"}) {
    const Model model = golden(name);
    const PlanOptions options{.context = 512, .parallel = 3, .prefill_chunk = 64};
    const Result<Plan> one = make_plan(model, machine(1), options);
    const Result<Plan> two = make_plan(model, machine(2), options);
    ASSERT_TRUE(one && two) << name;
    ASSERT_EQ(two->shards.size(), 2u);
    const ShardPlan& whole = one->shards.front();
    const ShardPlan& a = two->shards[0];
    const ShardPlan& b = two->shards[1];
    EXPECT_EQ(a.layout.first_layer, 0);
    EXPECT_EQ(a.layout.end_layer, b.layout.first_layer);
    EXPECT_EQ(b.layout.end_layer, model.spec().n_layer());
    EXPECT_TRUE(a.layout.embedding && !a.layout.head && !b.layout.embedding && b.layout.head);
    EXPECT_EQ(a.kv_bytes + b.kv_bytes, whole.kv_bytes) << name;
    EXPECT_EQ(a.recurrent_bytes + b.recurrent_bytes, whole.recurrent_bytes) << name;
    EXPECT_EQ(a.experts + b.experts, whole.experts) << name;
    // A tied head needs the embedding table in the last shard as well.
    const std::int64_t twice = a.weight_bytes + b.weight_bytes - whole.weight_bytes;
    EXPECT_EQ(twice > 0, model.spec().tied_head) << name;
    EXPECT_EQ(a.free_bytes(), b.free_bytes()) << name;  // of the same memory
    EXPECT_EQ(a.free_bytes(), kPlenty - two->total_bytes()) << name;
    EXPECT_EQ(whole.handoff_bytes, 0);
  }
}

// Connections are counted before it is decided what fits.
TEST(ShardPlanner, CountsConnectionsAtBothEnds) {
  const Model& model = deep();
  Inventory inventory = machine(3);
  for (const std::size_t i : {1, 2}) {
    inventory.devices[i].remote = true;
    inventory.devices[i].memory = static_cast<int>(i);
    inventory.devices[i].connection = [](const ShardLayout& layout) {
      return ConnectionBytes{.here = 1000, .there = layout.head ? 5000 : 3000};
    };
  }
  const PlanOptions options{.context = 256, .layer_weights = {1, 1, 1}};
  const Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards[0].connection_bytes, 2000);
  EXPECT_EQ(plan->shards[1].connection_bytes, 3000);
  EXPECT_EQ(plan->shards[2].connection_bytes, 5000);
  for (std::size_t i = 0; i < plan->shards.size(); ++i) {
    Inventory tight = inventory;
    tight.devices[i].has_file = false;  // nothing may leave
    tight.devices[i].budget = plan->shards[i].total_bytes() + plan->shards[i].host_bytes;
    EXPECT_TRUE(make_plan(model, tight, options)) << i;
    --*tight.devices[i].budget;
    EXPECT_FALSE(make_plan(model, tight, options)) << i;
  }
}

TEST(ShardPlanner, WeightsDecideAndCutsKeepSharedKvTogether) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  const Result<Plan> plan =
      make_plan(model, machine(2), {.context = 256, .layer_weights = {1, 99}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(ends(*plan), (std::vector<int>{1, n}));

  const Model shared = golden("gemma4");
  for (int l = 0; l < shared.spec().n_layer(); ++l) {
    const AttentionSpec* a = shared.spec().layers[static_cast<std::size_t>(l)].attention();
    if (a->kv_source < 0) continue;
    const double total = shared.spec().n_layer();
    const Result<Plan> moved = make_plan(
        shared, machine(2), {.context = 256, .layer_weights = {l / total, 1 - l / total}});
    ASSERT_TRUE(moved) << moved.error().message;
    const int cut = moved->shards[0].layout.end_layer;
    EXPECT_TRUE(cut <= a->kv_source || cut > l) << cut;
  }
}

TEST(ShardPlanner, RefusesMoreDevicesThanParts) {
  const Model model = golden("qwen3");
  const Result<Plan> plan = make_plan(model, machine(model.spec().n_layer() + 1), {.context = 256});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::invalid);
  EXPECT_NE(plan.error().message.find("devices"), std::string::npos) << plan.error().message;
  EXPECT_FALSE(make_plan(model, machine(2), {.context = 256, .layer_weights = {1, 1, 1}}));
}

TEST(ShardPlanner, BalancesEqualLayers) {
  const Model model = golden("qwen3");  // equal layers
  const int n = model.spec().n_layer();
  for (int devices = 1; devices <= n; ++devices) {
    const Result<Plan> plan = make_plan(model, machine(devices), {.context = 256});
    ASSERT_TRUE(plan) << plan.error().message;
    for (const ShardPlan& shard : plan->shards) {
      const int layers = shard.layout.end_layer - shard.layout.first_layer;
      EXPECT_GE(layers, n / devices);
      EXPECT_LE(layers, (n + devices - 1) / devices);
    }
  }
}

TEST(ShardPlanner, ThreadsCountAsSpeed) {
  const Model model = golden("laguna");
  Inventory inventory = machine(2);
  inventory.devices[1].threads = 100;
  const Result<Plan> plan = make_plan(model, inventory, {.context = 256});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards[0].layout.end_layer, 1);
}

TEST(ShardPlanner, BudgetsMoveTheCut) {
  const Model model = golden("qwen3");
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(2), options);
  ASSERT_TRUE(roomy);
  ASSERT_GT(roomy->shards[1].layout.end_layer - roomy->shards[1].layout.first_layer, 1);
  Inventory tight = machine(2);
  for (DeviceInventory& device : tight.devices) device.has_file = false;
  tight.devices[1].budget = roomy->shards[1].total_bytes() - 1;
  const Result<Plan> plan = make_plan(model, tight, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->shards[1].layout.first_layer, roomy->shards[1].layout.first_layer);
  EXPECT_GE(plan->shards[1].free_bytes(), 0);
  EXPECT_EQ(plan->shards[1].budget_bytes, *tight.devices[1].budget);

  // The same cut by weights does not fit, and the message says which does.
  PlanOptions fixed = options;
  fixed.layer_weights = {1, 1};
  const Result<Plan> refused = make_plan(model, tight, fixed);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::exhausted);
  const std::string& message = refused.error().message;
  EXPECT_NE(message.find("cpu:1 lacks 1 B"), std::string::npos) << message;
  EXPECT_NE(message.find("--target-layer-split"), std::string::npos) << message;
  EXPECT_NE(message.find("would fit"), std::string::npos) << message;

  // With the file at hand, that cut leaves weights there; without one asked for, the cut moves.
  for (DeviceInventory& device : tight.devices) device.has_file = true;
  const Result<Plan> left = make_plan(model, tight, fixed);
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->shards[1].layout.first_layer, roomy->shards[1].layout.first_layer);
  EXPECT_GT(left->shards[1].file_bytes, 0);
  const Result<Plan> moved = make_plan(model, tight, options);
  ASSERT_TRUE(moved) << moved.error().message;
  EXPECT_EQ(ends(*moved), ends(*plan));
  EXPECT_EQ(moved->shards[1].file_bytes, 0);
}

TEST(ShardPlanner, SaysHowManyLayersFit) {
  const Model model = golden("qwen3");
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(2), options);
  ASSERT_TRUE(roomy);
  Inventory tight = machine(2);
  for (DeviceInventory& device : tight.devices) device.has_file = false;
  tight.devices[0].budget = roomy->shards[0].total_bytes() + roomy->process_bytes;
  tight.devices[1].budget = 1000;
  const Result<Plan> plan = make_plan(model, tight, options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::exhausted);
  const std::string held = fmt::format("hold {} of {} layers", roomy->shards[0].layout.end_layer,
                                       model.spec().n_layer());
  EXPECT_NE(plan.error().message.find(held), std::string::npos) << plan.error().message;
  EXPECT_NE(plan.error().message.find("cpu:1 lacks"), std::string::npos) << plan.error().message;
}

TEST(ShardPlanner, TheContextGivesWayToTheTightestBudget) {
  const Model model = golden("qwen3");
  const Result<Plan> roomy = make_plan(model, machine(2), {.parallel = 8});
  ASSERT_TRUE(roomy);
  Inventory tight = machine(2);
  for (std::size_t i = 0; i < 2; ++i)
    tight.devices[i].budget = roomy->shards[i].total_bytes() + roomy->shards[i].host_bytes -
                              roomy->shards[i].kv_bytes / 4;
  const Result<Plan> plan = make_plan(model, tight, {.parallel = 8});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->context, roomy->context / 2);
}

TEST(ShardPlanner, PrintsEveryShard) {
  const Result<Plan> plan = make_plan(golden("laguna"), machine(2), {.context = 512});
  ASSERT_TRUE(plan) << plan.error().message;
  const nlohmann::ordered_json json = plan_json(*plan);
  ASSERT_EQ(json["shards"].size(), 2u);
  std::int64_t total = plan->process_bytes;
  for (const auto& shard : json["shards"]) total += shard["total_bytes"].get<std::int64_t>();
  EXPECT_EQ(json["total_bytes"].get<std::int64_t>(), total);
  EXPECT_EQ(json["shards"][1]["device"], "cpu:1");
  const std::string table = plan_table(*plan);
  for (const char* part : {"cpu:0", "cpu:1", "threads", "scratch", "+embedding", "+head"})
    EXPECT_NE(table.find(part), std::string::npos) << part;
  // Columns in which nothing stands are left out.
  for (const char* part : {"recurrent", "host", "budget"})
    EXPECT_EQ(table.find(part), std::string::npos) << part;
}

TEST(ShardPlanner, PrintsNumbersApart) {
  Inventory inventory = machine(1);
  inventory.devices[0].budget = std::int64_t{1'000'000} << 30;
  inventory.expert_workers = {
      {.name = "worker:unix:/nobody", .budget = kPlenty, .unheard = "worker:unix:/nobody is busy"},
      {.name = "worker:1", .threads = 7, .budget = 1},
  };
  const Result<Plan> plan =
      make_plan(golden("qwen35moe"), inventory, {.context = 256, .expert_resident = 50.0});
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string table = plan_table(*plan);
  EXPECT_NE(table.find("  977 TiB   977 TiB\n"), std::string::npos) << table;
  EXPECT_NE(table.find("experts (assumed)"), std::string::npos) << table;
  EXPECT_NE(table.find("worker:unix:/nobody is busy: what it has"), std::string::npos) << table;
  EXPECT_NE(table.find("\nworker:1                   -  not needed "), std::string::npos) << table;
}

// What a table of all columns says of bytes stands below the rest.
TEST(ShardPlanner, PrintsNoTableWiderThanATerminal) {
  Inventory inventory = machine(2);
  inventory.devices[1].name = "worker:unix:/run/a-folder-that-is-there/of-a-worker-far-away.sock";
  inventory.devices[1].budget = kPlenty;
  inventory.expert_workers = {{.name = "worker:1", .threads = 7, .budget = kPlenty}};
  const Result<Plan> plan =
      make_plan(golden("qwen35moe"), inventory, {.context = 256, .expert_resident = 50.0});
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string table = plan_table(*plan);
  const std::string tables = table.substr(0, table.find("\nOne token"));
  std::istringstream lines(tables.substr(tables.find("\n\n") + 2));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << table;
  for (const char* part :
       {"  layers", "  worker\ncpu:0 ", "  free\ncpu:0 ",
        "\nworker:unix:/run/a-folder-that-is-there/of-a-worker-far-away.sock\n  "})
    EXPECT_NE(tables.find(part), std::string::npos) << table;
}

// Where every cut leaves something in the file, and that is packed for each use, the one that is
// soonest with it: not the even one, whose second half would lie there whole. Quantised rows are
// read as fast from there, and cut evenly.
TEST(ShardPlanner, CountsWhatLeavesASmallDevice) {
  const Model model = synthetic(
      {.family = "qwen35moe", .preset = "mini", .types = "bf16", .threads = 1, .hollow = true});
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const auto small_device = [&](std::int64_t bytes, bool worker, std::vector<double> weights = {}) {
    Inventory inventory = machine(2);
    DeviceInventory& device = inventory.devices[1];
    device.remote = worker;
    (worker ? device.most : device.budget) = bytes;
    Result<Plan> plan =
        make_plan(model, inventory,
                  {.context = 1024, .prefill_chunk = 256, .layer_weights = std::move(weights)});
    EXPECT_TRUE(plan) << plan.error().message;
    return *std::move(plan);
  };
  EXPECT_EQ(ends(small_device(48 * kMiB, false)), (std::vector<int>{7, 8}));
  EXPECT_EQ(ends(small_device(100 * kMiB, false)), (std::vector<int>{7, 8}));
  EXPECT_EQ(ends(small_device(48 * kMiB, true)), (std::vector<int>{7, 8}));
  const Model quantised =
      synthetic({.family = "qwen35moe", .preset = "mini", .threads = 1, .hollow = true});
  Inventory inventory = machine(2);
  inventory.devices[1].budget = 48 * kMiB;
  const Result<Plan> plan =
      make_plan(quantised, inventory, {.context = 1024, .prefill_chunk = 256});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(ends(*plan), (std::vector<int>{4, 8}));
  // Of both, that is also what is predicted.
  constexpr MeasuredSpeed kSpeed{
      .read_bytes_per_s = 1e10, .op_per_s = 1e12, .thread_read_bytes_per_s = 1e10};
  const Plan uneven = small_device(48 * kMiB, false, {7, 1});
  const Plan even = small_device(48 * kMiB, false, {1, 1});
  EXPECT_GT(even.shards[1].file_bytes, uneven.shards[1].file_bytes);
  EXPECT_GT(predict(model, uneven, kSpeed)->decode.tokens_per_s,
            1.1 * predict(model, even, kSpeed)->decode.tokens_per_s);
}

// Prints the processor time of a plan, the least of five; docs/results.md says what to expect.
TEST(ShardPlanner, PlansAFullModel) {
  const Model& model = full_preset();
  PlanOptions options{.context = 32768, .parallel = 4};
  for (const bool budgets : {true, false}) {
    for (const std::int64_t gib : {64, 16, 8}) {
      for (const int devices : {1, 2, 3, 4}) {
        Inventory inventory = machine(devices, gib << 30);
        for (DeviceInventory& device : inventory.devices)
          if (budgets) device.budget = (gib << 30) / devices;
        double best = 1e9;
        for (int i = 0; i < 5; ++i) {
          const std::clock_t start = std::clock();
          const Result<Plan> plan = make_plan(model, inventory, options);
          best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
          ASSERT_TRUE(plan) << plan.error().message;
          EXPECT_EQ(plan->shards[0].layout.experts.empty(), gib == 64);
          for (const ShardPlan& shard : plan->shards) EXPECT_GE(shard.free_bytes(), 0);
        }
        std::printf("%d devices of %d GiB together, %s: %.2f ms\n", devices, static_cast<int>(gib),
                    budgets ? "a budget each" : "no budgets", best);
      }
    }
  }
}

// What would fit is looked for by many plans; prints the processor time of all, the least of three.
TEST(ShardPlanner, RefusesAFullModelSoon) {
  const Model& model = full_preset();
  const auto milliseconds = [&](const Inventory& inventory, const PlanOptions& options, bool fits) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const std::clock_t start = std::clock();
      const Result<Plan> plan = make_plan(model, inventory, options);
      best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      EXPECT_EQ(plan.ok(), fits);
    }
    return best;
  };
  for (const int devices : {1, 2, 3, 4}) {
    Inventory inventory = machine(devices);
    for (DeviceInventory& device : inventory.devices)
      device.budget = (std::int64_t{8} << 30) / devices;
    const double plan = milliseconds(inventory, {.context = 32768}, true);
    for (DeviceInventory& device : inventory.devices) device.budget = std::int64_t{200} << 20;
    const double refusal = milliseconds(inventory, {.context = 32768, .parallel = 64}, false);
    std::printf("%d devices: a plan %.2f ms, a refusal %.2f ms\n", devices, plan, refusal);
    EXPECT_LT(refusal, 100.0 * plan);
  }
}

// Where some cut fits the budgets, the planner finds one that does.
TEST(ShardPlanner, FindsACutWhereThereIsOne) {
  const Model& model = deep();
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(3), options);
  ASSERT_TRUE(roomy);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> part(0.3, 2.0);
  int found = 0;
  for (int round = 0; round < 12; ++round) {
    Inventory inventory = machine(3);
    for (std::size_t i = 0; i < 3; ++i) {
      const ShardPlan& shard = roomy->shards[i];
      inventory.devices[i].has_file = false;
      inventory.devices[i].budget =
          shard.host_bytes +
          static_cast<std::int64_t>(part(random) * static_cast<double>(shard.total_bytes()));
    }
    bool any = false;
    for (int a = 1; a <= 10 && !any; ++a)
      for (int b = 1; a + b <= 11 && !any; ++b) {
        PlanOptions cut = options;
        cut.layer_weights = {static_cast<double>(a), static_cast<double>(b), 12.0 - a - b};
        any = make_plan(model, inventory, cut).ok();
      }
    EXPECT_EQ(make_plan(model, inventory, options).ok(), any) << round;
    found += any ? 1 : 0;
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 12);
}

// Small pieces fill CPUs sooner; a GPU decodes the weights of all experts for each.
TEST(PieceRows, AreAsManyAsTheDevicesNeed) {
  const Model model = golden("qwen35moe");
  const DeviceInventory cpu{.kind = DeviceKind::cpu}, gpu{.kind = DeviceKind::cuda};
  const auto rows = [&](int chunk, const std::vector<DeviceInventory>& devices) {
    return piece_rows(model.spec(), chunk, devices);
  };
  EXPECT_EQ(rows(4096, {gpu}), 4096);
  EXPECT_EQ(rows(4097, {gpu, gpu}), 2048);
  EXPECT_EQ(rows(2048, {gpu, gpu, gpu}), 2048);
  EXPECT_EQ(rows(256, {gpu, gpu}), 256);
  EXPECT_LE(rows(4096, {gpu, cpu}), 512);
  EXPECT_EQ(rows(4096, {gpu, cpu}), rows(4096, {cpu, cpu}));
}

}  // namespace
}  // namespace tessera
