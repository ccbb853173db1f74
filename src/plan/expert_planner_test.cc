// Plans with experts away from their layers' devices: who leaves, who stays, and who takes them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "device/cpu/cpu_device.h"
#include "experts/expert_worker.h"
#include "plan/expert_workers.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

TEST(ExpertPlanner, ExpertsLeaveADeviceThatIsTooSmall) {
  const Model& model = expert_heavy();
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  Inventory inventory = machine(1);
  const Result<Plan> all = make_plan(model, inventory, options);
  ASSERT_TRUE(all);
  const ShardPlan& whole = all->shards[0];
  EXPECT_TRUE(whole.layout.experts.empty());
  std::int64_t layer_bytes = 0;  // of an expert of every layer
  for (const std::int64_t bytes : cpu_expert_bytes(model, whole.layout)) layer_bytes += bytes;
  int before = 256 * model.spec().n_layer();
  for (const int gone : {20, 80, 160}) {
    inventory.devices[0].budget = whole.total_bytes() + whole.host_bytes - gone * layer_bytes;
    const Result<Plan> part = make_plan(model, inventory, options);
    ASSERT_TRUE(part) << part.error().message;
    const ShardPlan& shard = part->shards[0];
    EXPECT_GE(shard.free_bytes(), 0);
    EXPECT_LT(shard.free_bytes(), layer_bytes);
    EXPECT_EQ(shard.experts + shard.experts_host, whole.experts);
    EXPECT_LT(shard.experts, before);
    EXPECT_GT(shard.offload_bytes, 0);
    EXPECT_GT(shard.cold_share, 0.0);
    EXPECT_EQ(shard.weight_bytes, cpu_footprint(model, shard.layout, 1).weights);
    before = shard.experts;
  }
  inventory.devices[0].budget = whole.host_bytes + (std::int64_t{1} << 20);
  const Result<Plan> none = make_plan(model, inventory, options);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::exhausted);
  EXPECT_NE(none.error().message.find("cpu:0 lacks"), std::string::npos) << none.error().message;
}

// What leaves the memory of a worker with layers stays in its file: it reaches no other worker.
TEST(ExpertPlanner, ExpertsLeaveAWorkersMemoryToo) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  inventory.expert_workers.push_back({.name = "worker:1", .budget = kPlenty});
  const Result<Plan> plan = make_plan(
      model, inventory, {.context = 256, .expert_resident = 50.0, .expert_spare = {.places = 2}});
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan &here = plan->shards[0], &there = plan->shards[1];
  EXPECT_EQ(here.experts_host, 0);
  EXPECT_EQ(here.experts_worker, here.experts);
  EXPECT_EQ(there.experts_worker, 0);
  EXPECT_EQ(there.experts_host, there.experts);
  EXPECT_GT(there.offload_bytes, 0);
  for (const LayerExperts& layer : there.layout.experts)
    EXPECT_EQ(layer.spare, layer.home.empty() ? 0 : 2);
}

TEST(ExpertPlanner, PercentOfResidentsIsKeptToTheByte) {
  const Model model = golden("qwen35moe");
  const Result<Plan> all = make_plan(model, machine(1), {.context = 256});
  ASSERT_TRUE(all);
  const std::vector<std::int64_t> each = cpu_expert_bytes(model, all->shards[0].layout);
  for (const double percent : {0.0, 25.0, 50.0}) {
    const Result<Plan> plan =
        make_plan(model, machine(1), {.context = 256, .expert_resident = percent});
    ASSERT_TRUE(plan);
    std::int64_t away = 0;
    for (int l = 0; l < model.spec().n_layer(); ++l) {
      const LayerExperts* experts = plan->shards[0].layout.layer_experts(l);
      if (experts == nullptr) continue;
      const auto n = static_cast<int>(experts->home.size());
      EXPECT_EQ(experts->resident(), std::lround(percent / 100.0 * n));
      away += (n - experts->resident()) * each[static_cast<std::size_t>(l)];
    }
    EXPECT_EQ(plan->shards[0].weight_bytes, all->shards[0].weight_bytes - away);
    // In the file an expert is as large, but for what rounds up to whole lines.
    EXPECT_LE(plan->shards[0].mapped_bytes, away);
    EXPECT_GE(plan->shards[0].mapped_bytes, away * 9 / 10);
    EXPECT_NEAR(plan->shards[0].cold_share, 1.0 - percent / 100.0, 1e-9);
  }
}

TEST(ExpertPlanner, AProfileDecidesWhoStays) {
  const Model model = golden("qwen35moe");
  PlanOptions options{.context = 256, .expert_resident = 25.0};
  for (const LayerSpec& layer : model.spec().layers) {
    auto& counts = options.expert_counts.emplace_back();
    for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
      counts.push_back(e % 4 == 3 ? 10.0 : 1.0);
  }
  const Result<Plan> plan = make_plan(model, machine(1), options);
  ASSERT_TRUE(plan);
  for (int l = 0; l < model.spec().n_layer(); ++l) {
    const LayerExperts* experts = plan->shards[0].layout.layer_experts(l);
    for (std::size_t e = 0; experts != nullptr && e < experts->home.size(); ++e)
      EXPECT_EQ(experts->home[e].is_resident(), e % 4 == 3) << l << " " << e;
  }
}

TEST(ExpertPlanner, WorkersTakeExpertsBeforeTheHost) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .budget = kPlenty}};
  PlanOptions options{.context = 256, .expert_resident = 50.0};
  Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[0].experts_worker, 0);
  const ExpertWorkerPlan& worker = plan->expert_workers.front();
  inventory.expert_workers[0].budget =
      worker.host_bytes + worker.scratch_bytes + worker.weight_bytes / 2;
  plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[0].experts_worker, 0);
}

// What of a worker on a GPU is in this machine's memory is its program, connection and buffers.
TEST(ExpertPlanner, AGpusExpertsAreInItsMemory) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0",
                               .here = true,
                               .kind = DeviceKind::cuda,
                               .budget = 10 * kPlenty,
                               .bounded = true,
                               .connection = [](const ExpertJobs&) {
                                 return ConnectionBytes{.here = 1000, .there = 3000};
                               }}};
  const PlanOptions options{.context = 256, .expert_resident = 50.0};
  Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  const ExpertWorkerPlan& worker = plan->expert_workers.front();
  EXPECT_EQ(worker.host_bytes, kWorkerBytes + gpu_worker_host_bytes(model.spec(), worker.job_rows));
  EXPECT_EQ(worker.free_bytes(), 10 * kPlenty - worker.weight_bytes - worker.scratch_bytes);
  EXPECT_EQ(plan->shards[0].free_bytes(),
            kPlenty - plan->total_bytes() - worker.host_bytes - worker.connection_bytes);
  EXPECT_TRUE(plan->warnings.empty());
  // Of its room as many experts as there is room for as the GPU has them.
  inventory.expert_workers[0].budget = worker.scratch_bytes + worker.weight_bytes / 2;
  plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->expert_workers.front().experts, 0);
  EXPECT_GE(plan->expert_workers.front().free_bytes(), 0);
}

// A worker's budget is for its whole process, and one that is given nothing takes nothing.
TEST(ExpertPlanner, CountsAWorkersProcess) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  int asked = 0;
  inventory.expert_workers = {{.name = "worker:0",
                               .here = true,
                               .threads = 3,
                               .budget = kPlenty,
                               .connection = [&](const ExpertJobs& jobs) {
                                 asked = jobs.max_rows;
                                 return ConnectionBytes{.here = 1000, .there = 3000};
                               }}};
  PlanOptions options{.context = 256, .expert_resident = 50.0};
  Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  const ExpertWorkerPlan& worker = plan->expert_workers.front();
  EXPECT_EQ(asked, worker.job_rows);
  EXPECT_EQ(worker.threads, 3);
  EXPECT_EQ(worker.connection_bytes, 3000);
  EXPECT_EQ(worker.host_bytes, kWorkerBytes);
  EXPECT_EQ(plan->shards[0].connection_bytes, 1000);
  const std::int64_t taken = worker.total_bytes() + worker.host_bytes;
  EXPECT_EQ(worker.free_bytes(), kPlenty - taken);
  EXPECT_EQ(plan->shards[0].free_bytes(), kPlenty - plan->total_bytes() - taken);

  options.expert_resident.reset();
  plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  const ExpertWorkerPlan& idle = plan->expert_workers.front();
  EXPECT_EQ(idle.threads, 0);
  EXPECT_EQ(idle.total_bytes() + idle.host_bytes, 0);
  EXPECT_EQ(plan->shards[0].connection_bytes, 0);
  EXPECT_EQ(plan->shards[0].free_bytes(), kPlenty - plan->total_bytes());
}

// A worker is given what one layer of every shard's step is cut into, and no more.
TEST(ExpertPlanner, CountsTheJobsThatMayBeUnderWay) {
  const auto jobs = [](int shards, int shard_rows, int job_rows) {
    PlanOptions options;
    options.expert_job_rows = job_rows;
    const ExpertJobs made = expert_jobs(shards, shard_rows, options);
    EXPECT_EQ(made.shards, std::max(1, shards));
    return std::pair(made.max_rows, made.under_way);
  };
  EXPECT_EQ(jobs(1, 513, 1024), std::pair(513, 1));
  EXPECT_EQ(jobs(3, 513, 1024), std::pair(513, 3));
  EXPECT_EQ(jobs(1, 513, 512), std::pair(512, 1)) << "one row is left";
  EXPECT_EQ(jobs(2, 513, 256), std::pair(256, 4));
  EXPECT_EQ(jobs(2, 513, 4), std::pair(4, kMostExpertJobs));
  EXPECT_EQ(jobs(0, 513, 1024), std::pair(513, 1)) << "all layers are elsewhere";

  Inventory inventory = machine(2);
  inventory.expert_workers = {{.name = "worker:0", .budget = kPlenty}};
  const Result<Plan> plan =
      make_plan(golden("qwen35moe"), inventory, {.context = 256, .expert_resident = 50.0});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->expert_workers[0].jobs, 2);
}

// The way to a worker takes memory too: more than there is, and the plan does without it.
TEST(ExpertPlanner, LeavesAWorkerOutThatThereIsNoRoomToReach) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  PlanOptions options{.context = 256, .expert_resident = 50.0};
  std::int64_t fits = kPlenty, lacks = 0;
  while (fits - lacks > 1) {
    inventory.devices[0].budget = (fits + lacks) / 2;
    (make_plan(model, inventory, options) ? fits : lacks) = *inventory.devices[0].budget;
  }
  inventory.expert_workers = {
      {.name = "worker:0", .budget = kPlenty, .connection = [](const ExpertJobs&) {
         return ConnectionBytes{.here = 1};
       }}};
  for (const std::int64_t budget : {2 * fits, fits}) {
    inventory.devices[0].budget = budget;
    const Result<Plan> plan = make_plan(model, inventory, options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->expert_workers[0].experts > 0, budget > fits);
    EXPECT_EQ(plan->warnings.empty(), budget > fits);
  }
  EXPECT_NE(make_plan(model, inventory, options)->warnings[0].find("worker:0 is left out"),
            std::string::npos);
  options.expert_workers_required = true;
  EXPECT_FALSE(make_plan(model, inventory, options));
}

// What nobody measured is assumed to be as with the host, and marked.
TEST(ExpertPlanner, SaysWhatExpertsWerePlacedBy) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .budget = kPlenty, .call_s = 1e-3},
                              {.name = "worker:1", .budget = kPlenty, .bytes_per_s = 5e9}};
  PlanOptions options{.context = 256, .expert_resident = 50.0};
  options.expert_costs = {
      .call_s = 2e-6, .bytes_per_s = 3e9, .call_measured = true, .speed_measured = true};
  const Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->expert_costs.size(), 3u);
  const ExpertCosts &far = plan->expert_costs[0].costs, &fast = plan->expert_costs[1].costs;
  EXPECT_EQ(far.call_s, 1e-3);
  EXPECT_EQ(far.bytes_per_s, 3e9);
  EXPECT_TRUE(far.call_measured && !far.speed_measured);
  EXPECT_EQ(fast.call_s, 2e-6);
  EXPECT_EQ(fast.bytes_per_s, 5e9);
  EXPECT_TRUE(!fast.call_measured && fast.speed_measured);
  EXPECT_EQ(plan->expert_costs[2].executor, "host");
  EXPECT_TRUE(plan->expert_costs[2].costs.speed_measured);
  EXPECT_NE(plan_table(*plan).find("placed by: worker:0 1000.0 us a call and 3.0 GB/s (assumed); "
                                   "worker:1 2.0 us (assumed) a call"),
            std::string::npos)
      << plan_table(*plan);
  options.expert_workers_required = true;
  EXPECT_EQ(make_plan(model, inventory, options)->expert_costs.size(), 2u);
  inventory.devices.front().remote = inventory.devices.front().has_file = true;
  const Result<Plan> elsewhere = make_plan(model, inventory, options);
  ASSERT_TRUE(elsewhere) << elsewhere.error().message;
  ASSERT_EQ(elsewhere->expert_costs.size(), 1u) << "a worker with layers has its own host alone";
  EXPECT_EQ(elsewhere->expert_costs[0].executor, "host");
  options.expert_resident = 100.0;
  EXPECT_TRUE(make_plan(model, inventory, options)->expert_costs.empty());
}

// "0-3,7" as numbers.
std::vector<int> numbers_of(const nlohmann::ordered_json& ranges) {
  std::vector<int> numbers;
  std::istringstream text(ranges.get<std::string>());
  for (std::string part; std::getline(text, part, ',');) {
    int first = 0, last = 0;
    if (std::sscanf(part.c_str(), "%d-%d", &first, &last) < 2) last = first;
    for (int e = first; e <= last; ++e) numbers.push_back(e);
  }
  return numbers;
}

// Experts that were sent away though all would fit, and those that had to go.
TEST(ExpertPlanner, SaysWhereALayerSplitFits) {
  const Model model = golden("qwen35moe");
  const PlanOptions half{.context = 256, .expert_resident = 50.0};
  Inventory inventory = machine(2);
  const Result<Plan> split = make_plan(model, inventory, half);
  ASSERT_TRUE(split);
  const std::string line =
      "All weights fit these devices as a layer split, which is expected to be faster: "
      "--expert-resident all";
  EXPECT_EQ(split->advice, line + ".");
  EXPECT_NE(plan_table(*split).find(line + ".\n"), std::string::npos) << plan_table(*split);
  EXPECT_EQ(plan_json(*split).at("advice"), line + ".");
  EXPECT_EQ(make_plan(model, inventory, {.context = 256})->advice, "") << "nothing is away";
  EXPECT_EQ(make_plan(model, machine(1), half)->advice,
            "All weights fit on cpu:0, which is expected to be faster: --expert-resident all.");

  inventory.expert_workers = {{.name = "worker:0", .here = true, .budget = kPlenty}};
  EXPECT_EQ(make_plan(model, inventory, half)->advice, line + ", without workers of experts.");
  inventory.expert_workers[0] = {.name = "worker:0", .budget = kPlenty};
  EXPECT_EQ(make_plan(model, inventory, half)->advice, "") << "it has memory of its own";

  PlanOptions heavy{.context = 256, .prefill_chunk = 16};
  inventory = machine(1);
  const ShardPlan whole = make_plan(expert_heavy(), inventory, heavy)->shards[0];
  heavy.expert_resident = 50.0;
  for (const int lacks : {0, 1}) {
    inventory.devices[0].budget = whole.total_bytes() + whole.host_bytes - lacks;
    const Result<Plan> part = make_plan(expert_heavy(), inventory, heavy);
    ASSERT_TRUE(part) << part.error().message;
    EXPECT_EQ(part->advice.empty(), lacks == 1) << part->advice;
  }
}

TEST(ExpertPlanner, JsonSaysWhoHasEachExpert) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .budget = kPlenty},
                              {.name = "worker:1", .budget = kPlenty}};
  const Result<Plan> all = make_plan(model, inventory, {.context = 256});
  ASSERT_TRUE(all);
  EXPECT_TRUE(plan_json(*all)["shards"][0]["experts_away"].empty());
  const Result<Plan> plan = make_plan(model, inventory, {.context = 256, .expert_resident = 25.0});
  ASSERT_TRUE(plan);
  const ShardLayout& layout = plan->shards[0].layout;
  const auto layers = plan_json(*plan)["shards"][0]["experts_away"];
  ASSERT_EQ(layers.size(), layout.experts.size());
  for (const auto& layer : layers) {
    const LayerExperts* experts = layout.layer_experts(layer["layer"].get<int>());
    std::vector<ExpertHome> home(experts->home.size(), ExpertHome::host());
    for (const int e : numbers_of(layer["resident"]))
      home.at(static_cast<std::size_t>(e)) = ExpertHome::resident();
    for (int w = 0; w < 2; ++w)
      for (const int e : numbers_of(layer[fmt::format("worker:{}", w)]))
        home.at(static_cast<std::size_t>(e)) = ExpertHome::worker(w);
    EXPECT_EQ(home, experts->home);
    EXPECT_FALSE(layer.contains("host"));
  }
}

TEST(ExpertPlanner, ExpertsThatDoNotFitLeaveAWorkersMemory) {
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  inventory.devices[1].budget = std::int64_t{6} << 30;
  const Result<Plan> plan =
      make_plan(full_preset(), inventory, {.context = 4096, .layer_weights = {1, 1}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[1].experts_host, 0);
  EXPECT_GT(plan->shards[1].experts, 0);
  EXPECT_GE(plan->shards[1].free_bytes(), 0);
}

// Routing drawn without replacement from a Zipf law, in another order in each layer.
class ZipfRouting {
 public:
  ZipfRouting(int experts, int used, unsigned layer) : used_(used), random_(7919 * (layer + 1)) {
    std::vector<double> weights;
    for (int e = 0; e < experts; ++e) weights.push_back(1.0 / (e + 1.0));
    std::shuffle(weights.begin(), weights.end(), random_);
    draw_ = std::discrete_distribution<int>(weights.begin(), weights.end());
  }
  std::vector<int> row() {
    std::vector<int> chosen;
    while (static_cast<int>(chosen.size()) < used_) {
      const int e = draw_(random_);
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
    }
    return chosen;
  }

 private:
  int used_;
  std::mt19937 random_;
  std::discrete_distribution<int> draw_;
};

TEST(ExpertPlanner, ASkewedProfileHalvesThePairsAway) {
  const Model& model = full_preset();
  const MoeSpec& moe = *model.spec().layers[0].moe;
  std::vector<ZipfRouting> routing;
  PlanOptions options{.context = 4096, .expert_resident = 50.0};
  const Result<Plan> blind = make_plan(model, machine(1), options);
  for (unsigned l = 0; l < static_cast<unsigned>(model.spec().n_layer()); ++l) {
    routing.emplace_back(moe.n_expert, moe.n_used, l);
    auto& counts = options.expert_counts.emplace_back(static_cast<std::size_t>(moe.n_expert), 0.0);
    for (int row = 0; row < 2000; ++row)
      for (const int e : routing.back().row()) counts[static_cast<std::size_t>(e)] += 1.0;
  }
  const Result<Plan> known = make_plan(model, machine(1), options);
  ASSERT_TRUE(blind && known);
  EXPECT_EQ(blind->shards[0].weight_bytes, known->shards[0].weight_bytes);
  int blind_away = 0, known_away = 0;
  for (int l = 0; l < model.spec().n_layer(); ++l)
    for (int row = 0; row < 200; ++row)  // that the profile has not seen
      for (const int e : routing[static_cast<std::size_t>(l)].row()) {
        const auto at = static_cast<std::size_t>(e);
        blind_away += blind->shards[0].layout.layer_experts(l)->home[at].is_resident() ? 0 : 1;
        known_away += known->shards[0].layout.layer_experts(l)->home[at].is_resident() ? 0 : 1;
      }
  std::printf("pairs away: %d with the profile, %d without\n", known_away, blind_away);
  EXPECT_LE(2 * known_away, blind_away);
}

}  // namespace
}  // namespace tessera
