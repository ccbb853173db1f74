// A worker of experts takes what the plan gives it, to the byte, however tight its budget is.
#include "worker/experts_handler.h"

#include <gtest/gtest.h>

#include <thread>

#include "experts/expert_worker.h"
#include "plan/expert_workers.h"
#include "worker/channel_pair.h"
#include "worker/connection_bytes.h"
#include "worker/handshake.h"
#include "worker/jobs.h"
#include "worker/remote_experts.h"
#include "worker/serve.h"
#include "worker/session.h"

namespace tessera::worker {
namespace {

constexpr std::int64_t kPlenty = std::int64_t{8} << 30;
constexpr int kThreads = 2;

Model open(const char* name) {
  return *Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
}

struct Asked {
  bool here = false;
  ExpertPayload payload = ExpertPayload::f32;
  int job_rows = 100;
};

Result<Plan> plan_with(const Model& model, std::int64_t budget, const Asked& asked = {}) {
  Inventory inventory;
  inventory.devices.push_back(
      {.name = "cpu", .threads = 1, .memory_total = kPlenty, .memory_free = kPlenty});
  inventory.expert_workers.push_back(
      {.name = "worker:0",
       .here = asked.here,
       .threads = kThreads,
       .budget = budget,
       .connection = [&model, payload = asked.payload](const ExpertJobs& jobs) {
         const WorkerSite site{.address = *Address::parse("unix:/w")};
         return experts_connection_bytes(site, model.spec(), jobs, payload);
       }});
  PlanOptions options{.context = 256, .expert_resident = 20.0};
  options.expert_job_rows = asked.job_rows;
  return make_plan(model, inventory, options);
}

Result<Prepared> load(const Model& model, const Plan& plan,
                      ExpertPayload payload = ExpertPayload::f32) {
  const Hello hello =
      experts_hello(model, {.experts = homes_of_all_layers(plan.shards, plan.n_layer),
                            .max_rows = plan.expert_workers.front().job_rows,
                            .payload = payload,
                            .credits = plan.expert_workers.front().jobs});
  // The program is counted by who plans, and not by the worker.
  ExpertsHandler handler(model,
                         {.device = {.device = "cpu", .threads = kThreads},
                          .budget = plan.expert_workers.front().budget_bytes - kWorkerBytes});
  return handler.prepare(hello, all_granted(hello));
}

TEST(PlannedExpertWorker, TakesWhatThePlanSaysWithinAnyBudget) {
  for (const char* name : {"qwen35moe", "laguna", "gemma4moe"}) {
    const Model model = open(name);
    const Result<Plan> roomy = plan_with(model, kPlenty);
    ASSERT_TRUE(roomy) << roomy.error().message;
    const ExpertWorkerPlan& most = roomy->expert_workers.front();
    EXPECT_EQ(most.experts, roomy->shards.front().experts_worker);
    EXPECT_EQ(most.job_rows, 100);
    int fewer = 0;
    for (std::int64_t budget = most.total_bytes(); budget > 0; budget -= most.total_bytes() / 7) {
      const Result<Plan> plan = plan_with(model, kWorkerBytes + budget);
      ASSERT_TRUE(plan) << plan.error().message;
      const ExpertWorkerPlan& worker = plan->expert_workers.front();
      SCOPED_TRACE(fmt::format("{}: {} experts of {} in {}", name, worker.experts, most.experts,
                               format_bytes(budget)));
      EXPECT_GE(worker.free_bytes(), 0);
      EXPECT_EQ(worker.experts, plan->shards.front().experts_worker);
      fewer += worker.experts < most.experts ? 1 : 0;
      if (worker.experts == 0) continue;
      const Result<Prepared> ready = load(model, *plan);
      ASSERT_TRUE(ready) << ready.error().message;
      EXPECT_EQ(ready->memory_used, static_cast<std::uint64_t>(worker.total_bytes()));
    }
    EXPECT_GT(fewer, 3);
    // All of them in just what they take.
    const Result<Plan> just = plan_with(model, kWorkerBytes + most.total_bytes());
    EXPECT_EQ(just->expert_workers.front().experts, most.experts);
  }
}

// Jobs and sums are counted as they travel, and no more jobs than may be under way.
TEST(PlannedExpertWorker, CountsJobsAsTheyTravel) {
  const Model model = open("qwen35moe");
  const auto planned = [&](ExpertPayload payload, int job_rows) {
    const Asked asked{.payload = payload, .job_rows = job_rows};
    const Result<Plan> plan = plan_with(model, kPlenty, asked);
    EXPECT_TRUE(plan);
    const ExpertWorkerPlan& worker = plan->expert_workers.front();
    const Result<Prepared> ready = load(model, *plan, payload);
    EXPECT_TRUE(ready) << ready.error().message;
    EXPECT_EQ(ready->memory_used, static_cast<std::uint64_t>(worker.total_bytes()));
    EXPECT_EQ(ready->credits, worker.jobs);
    return worker.connection_bytes;
  };
  const std::int64_t values = std::int64_t{513} * model.spec().n_embd;
  const std::int64_t pairs = std::int64_t{513} * model.spec().layers[0].moe->n_used;
  // A whole step in one job: it, the next one that comes, and its pairs in numbers.
  constexpr std::int64_t kNumbers = 8 + sizeof(RoutedPair);
  const std::int64_t whole = 2 * (4 * values + 8 * pairs) + kNumbers * pairs;
  EXPECT_EQ(planned(ExpertPayload::f32, 1024), whole);
  // Half as many bytes a row, and the sums as they go out.
  EXPECT_EQ(planned(ExpertPayload::f16, 1024), whole - 2 * 2 * values + 2 * values);
  EXPECT_EQ(planned(ExpertPayload::int16, 1024),
            whole - 2 * 4 * values + 3 * static_cast<std::int64_t>(int16_bytes(values)));
  // In two: one is computed, one waits and one may come.
  const std::int64_t halves = 3 * (4 * values + 8 * pairs) + kNumbers * pairs;
  EXPECT_EQ(planned(ExpertPayload::f32, 256), halves / 513 * 256);
}

// Jobs that wait are in its memory too: it takes no more of them than its budget leaves room for.
TEST(PlannedExpertWorker, KeepsAsManyJobsAsItsBudgetHolds) {
  const Model model = open("qwen35moe");
  const ExpertWorkerPlan most = plan_with(model, kPlenty)->expert_workers.front();
  const std::int64_t job = std::int64_t{most.job_rows} *
                           (model.spec().n_embd * 4 + model.spec().layers[0].moe->n_used * 8);
  const auto credits = [&](std::int64_t free) {
    const Result<Plan> plan = plan_with(model, kWorkerBytes + most.total_bytes() + free);
    const Result<Prepared> ready = load(model, *plan);
    EXPECT_TRUE(ready);
    return ready ? ready->credits : 0;
  };
  EXPECT_EQ(credits(0), 2);
  EXPECT_EQ(credits(job - 1), 2);
  EXPECT_EQ(credits(3 * job), 5);
  EXPECT_EQ(credits(100 * job), most.jobs) << "what was asked for";
}

TEST(PlannedExpertWorker, OfThisMachineTakesOfItsMemory) {
  const Model model = open("qwen35moe");
  const Result<Plan> elsewhere = plan_with(model, kPlenty),
                     here = plan_with(model, kPlenty, {.here = true});
  ASSERT_TRUE(elsewhere && here);
  EXPECT_EQ(elsewhere->shards.front().free_bytes() - here->shards.front().free_bytes(),
            here->expert_workers.front().total_bytes() + kWorkerBytes);
  EXPECT_EQ(elsewhere->total_bytes(), here->total_bytes());  // of this process
}

TEST(PlannedExpertWorker, IsPrinted) {
  const Result<Plan> plan = plan_with(open("qwen35moe"), kPlenty);
  ASSERT_TRUE(plan);
  const ExpertWorkerPlan& worker = plan->expert_workers.front();
  const auto json = plan_json(*plan)["expert_workers"];
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["device"], "worker:0");
  EXPECT_EQ(json[0]["experts"], worker.experts);
  EXPECT_EQ(json[0]["weight_bytes"], worker.weight_bytes);
  EXPECT_EQ(json[0]["free_bytes"], worker.budget_bytes - worker.total_bytes() - kWorkerBytes);
  const std::string table = plan_table(*plan);
  EXPECT_NE(table.find("\nworker:0"), std::string::npos) << table;
  EXPECT_NE(table.find(fmt::format("  experts  {:>7}  ", worker.experts)), std::string::npos)
      << table;
}

// A worker with all experts of a model, and a session with it.
class ExpertJobs : public ::testing::TestWithParam<AttachKind> {
 protected:
  ExpertJobs() {
    AttachOptions attach = ring_sizes(hello_);
    attach.kind = GetParam();
    ChannelPair pair = make_pair(attach);
    worker_ = std::thread([this, channel = std::move(pair.worker)] {
      const WorkerOffer offer{
          .roles = role_bit(Role::experts), .model = hello_.model, .dims = hello_.dims};
      Stats stats;
      EXPECT_TRUE(serve(*channel, offer, handler_, stats));
    });
    const auto reply = client_handshake(*pair.client, hello_, within());
    session_ =
        std::make_unique<Session>(std::move(pair.client), hello_, std::get<HelloAck>(*reply));
  }
  ~ExpertJobs() override {
    EXPECT_TRUE(session_->say_bye());
    worker_.join();
  }
  static Deadline within() { return after(std::chrono::seconds(20)); }

  Hello hello() const {
    std::vector<LayerExperts> experts(model_.spec().layers.size());
    for (std::size_t l = 0; l < experts.size(); ++l)
      if (const auto& moe = model_.spec().layers[l].moe)
        experts[l].home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::worker(0));
    return experts_hello(model_, {.experts = experts, .max_rows = 4});
  }
  // Of rows of halves.
  JobReply compute(std::uint32_t rows, const std::vector<WirePair>& pairs) {
    std::vector<std::byte> head, body(rows * hello_.dims.n_embd * sizeof(float));
    encode_experts_head(pairs, head);
    pack_rows(std::vector<float>(rows * hello_.dims.n_embd, 0.5f), WireType::f32, body);
    const std::span<const std::byte> parts[] = {head, body};
    const Result<Ticket> ticket =
        session_->submit({.op = Op::compute_experts,
                          .layer = 0,
                          .rows = rows,
                          .items = static_cast<std::uint32_t>(pairs.size()),
                          .in_type = WireType::f32,
                          .out_type = WireType::f64},
                         Parts(parts));
    JobReply reply;
    EXPECT_TRUE(ticket && *session_->wait(*ticket, reply, within()));
    return reply;
  }
  std::vector<double> sums(const JobReply& reply) const {
    EXPECT_FALSE(reply.error) << reply.error->text;
    EXPECT_EQ(reply.header.status, JobStatus::ok);
    std::vector<double> made(reply.header.rows * std::size_t{hello_.dims.n_embd});
    if (!reply.error) unpack_sums(reply.body, WireType::f64, made);
    return made;
  }

  const Model model_ = open("qwen35moe");
  const Hello hello_ = hello();
  ExpertsHandler handler_{model_, {.device = {.device = "cpu", .threads = 1}, .budget = kPlenty}};
  std::unique_ptr<Session> session_;
  std::thread worker_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, ExpertJobs,
                         ::testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::rings ? "rings" : "stream";
                         });

TEST_P(ExpertJobs, WithoutPairsAreZeros) {
  // Behind sums that are not.
  const std::vector<double> before = sums(compute(4, {{0, 1, 1.0f}, {3, 2, 1.0f}}));
  EXPECT_NE(before, std::vector<double>(before.size()));
  for (const std::uint32_t rows : {1u, 4u}) {
    const JobReply reply = compute(rows, {});
    EXPECT_EQ(reply.header.rows, rows);
    EXPECT_EQ(sums(reply), std::vector<double>(rows * std::size_t{hello_.dims.n_embd}));
  }
  EXPECT_EQ(sums(compute(4, {{0, 1, 1.0f}, {3, 2, 1.0f}})), before);
}

TEST_P(ExpertJobs, AnExpertNamedTwiceIsAddedUp) {
  EXPECT_EQ(sums(compute(1, {{0, 1, 0.5f}, {0, 1, 0.5f}})), sums(compute(1, {{0, 1, 1.0f}})));
}

TEST_P(ExpertJobs, AnExpertThatTheModelLacksIsAnErrorOfThatJobAlone) {
  const auto lacking = static_cast<std::uint16_t>(hello_.dims.n_expert);
  for (const std::uint16_t expert : {lacking, std::uint16_t{0xffff}}) {
    const JobReply reply = compute(1, {{0, 1, 1.0f}, {0, expert, 1.0f}});
    ASSERT_TRUE(reply.error.has_value());
    EXPECT_EQ(reply.error->code, WireError::malformed);
  }
  EXPECT_EQ(sums(compute(1, {})).size(), hello_.dims.n_embd);
}

}  // namespace
}  // namespace tessera::worker
