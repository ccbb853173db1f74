// What a worker of layers refuses.
#include "worker/layers_handler.h"

#include <gtest/gtest.h>

#include "device/gpu/gpu_layout.h"
#include "device/shard_tensors.h"
#include "plan/plan.h"
#include "worker/connection_bytes.h"
#include "worker/job_layout.h"

namespace tessera::worker {
namespace {

class AskingForLayers : public testing::Test {
 protected:
  AskingForLayers()
      : model_(*Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf")) {
    hello_ = {.role = Role::layers,
              .in_types = type_bit(WireType::f32),
              .out_types = type_bit(WireType::f32),
              .dims = model_dims(model_.spec()),
              .end_layer = static_cast<std::uint32_t>(model_.spec().n_layer()),
              .max_rows = 1,
              .max_page_changes = 1000,
              .slots = 1,
              .max_logit_rows = 1,
              .layers = {.max_positions = positions(), .kv_pages = {1}}};
  }
  std::uint32_t positions() const {
    return static_cast<std::uint32_t>(model_.spec().context_length);
  }
  HelloAck ack() const {
    return {.in_types = hello_.in_types,
            .out_types = hello_.out_types,
            .max_rows = hello_.max_rows,
            .max_page_changes = hello_.max_page_changes};
  }
  LayersHandler handler(std::int64_t budget) const {
    return {model_, {.device = {.device = "cpu", .threads = 2}, .budget = budget}};
  }

  Model model_;
  Hello hello_;
};

TEST_F(AskingForLayers, NoMorePositionsThanTheModelHas) {
  LayersHandler worker = handler(std::int64_t{1} << 30);
  EXPECT_TRUE(worker.prepare(hello_, ack()).ok());
  for (const std::uint32_t wrong : {0u, positions() + 1, 1u << 30}) {
    hello_.layers.max_positions = wrong;
    const Result<Prepared> ready = worker.prepare(hello_, ack());
    ASSERT_FALSE(ready.ok()) << wrong;
    EXPECT_EQ(ready.error().code, ErrorCode::invalid);
  }
}

TEST_F(AskingForLayers, PageTablesAreHeldAgainstTheBudget) {
  const ShardLayout layout = *hello_layout(model_.spec(), hello_, ack());
  const std::int64_t most = std::int64_t{1} << 40;
  const auto tables = [](int positions) {
    return *PageTables::bytes({.slots = 1, .groups = 1, .positions = positions});
  };
  const ShardPlan two{.threads = 2};
  Hello shorter = hello_;
  shorter.layers.max_positions = kPageTokens;
  const std::int64_t bytes = *check_budget(model_, layout, hello_, ack(), two, most);
  EXPECT_EQ(bytes - *check_budget(model_, layout, shorter, ack(), two, most),
            tables(model_.spec().context_length) - tables(kPageTokens));
  EXPECT_TRUE(handler(bytes).prepare(hello_, ack()).ok());
  const Result<Prepared> ready = handler(bytes - 1).prepare(hello_, ack());
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.error().code, ErrorCode::exhausted);
}

// Of a client that asked for it, and of the layers that it was given.
TEST(AskingForRouting, IsAnsweredForItsOwnLayers) {
  const Model model = *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  ShardLayout layout;
  layout.first_layer = 1;
  layout.end_layer = 3;
  layout.max_rows = layout.slots = 1;
  layout.kv_pages.assign(kv_groups(model.spec()).size(), 1);
  LayersHandler worker(
      model, {.device = {.device = "cpu", .threads = 1}, .budget = std::int64_t{1} << 30});
  std::vector<std::byte> body;
  for (const bool counts : {false, true, false}) {
    const Hello hello =
        layers_hello(model, layout, {.context = kPageTokens, .count_routing = counts});
    ASSERT_TRUE(worker.prepare(hello, all_granted(hello)));
    for (const int layer : {0, 1, 2, 3, 0xffff}) {
      const Status told = worker.routed(static_cast<std::uint16_t>(layer), body);
      ASSERT_EQ(told.ok(), counts && (layer == 1 || layer == 2)) << layer;
      if (told) {
        EXPECT_EQ(body.size(), routed_bytes(hello.dims.n_expert));
      } else {
        EXPECT_EQ(told.error().code, ErrorCode::not_found);
      }
    }
  }
}

TEST_F(AskingForLayers, JobsUnderAllCreditsAreHeldAgainstTheBudget) {
  const ShardLayout layout = *hello_layout(model_.spec(), hello_, ack());
  const auto bytes_with = [&](int credits) {
    HelloAck granted = ack();
    granted.credits = static_cast<std::uint16_t>(credits);
    return *check_budget(model_, layout, hello_, granted, {.threads = 2}, std::int64_t{1} << 40);
  };
  const std::uint64_t job = forward_body_bytes({.rows = 1,
                                                .sequences = 1,
                                                .page_changes = 1000,
                                                .logit_rows = 1,
                                                .state_changes = 1000,
                                                .choices = 1,
                                                .logit_changes = kMostLogitChanges},
                                               hello_.dims.n_embd, WireType::f32);
  EXPECT_EQ(bytes_with(7) - bytes_with(2), static_cast<std::int64_t>(5 * job));
}

// Of a GPU the budget is the card's memory, which page tables are no part of.
TEST_F(AskingForLayers, AGpusBytesAreHeldAgainstTheBudget) {
  const ShardLayout layout = *hello_layout(model_.spec(), hello_, ack());
  const std::int64_t bytes = gpu_footprint(model_, layout).total();
  const ShardPlan gpu{.kind = DeviceKind::cuda};
  EXPECT_EQ(*check_budget(model_, layout, hello_, ack(), gpu, bytes), bytes);
  EXPECT_FALSE(check_budget(model_, layout, hello_, ack(), gpu, bytes - 1).ok());
}

// What the planner counts for a worker of layers is what the worker says that it takes.
TEST(PlannedLayers, AreWhatTheWorkerTakes) {
  const std::pair<const char*, TransportChoice> cases[] = {{"qwen35moe", TransportChoice::stream},
                                                           {"qwen35moe", TransportChoice::shared},
                                                           {"qwen3", TransportChoice::stream},
                                                           {"gemma4", TransportChoice::automatic}};
  for (const auto& [name, transport] : cases) {
    const Model model =
        *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/" + std::string(name) + "-bf16.gguf");
    const std::int64_t most = std::int64_t{1} << 40;
    const DeviceInventory here{.name = "cpu", .threads = 1, .memory_free = most};
    DeviceInventory there{.name = "worker:0", .remote = true, .threads = 2, .memory = 1};
    there.memory_free = most;
    there.connection = [&, transport = transport](const ShardLayout& layout) {
      const WorkerSite site{.address = *Address::parse("unix:/w"), .transport = transport};
      return layers_connection_bytes(site, model.spec(), layout);
    };
    const PlanOptions options{.context = 512, .parallel = 3, .prefill_chunk = 200};
    const Result<Plan> plan = make_plan(model, {.devices = {here, there}}, options);
    ASSERT_TRUE(plan) << plan.error().message;
    const Hello hello = layers_hello(model, plan->shards[1].layout,
                                     {.context = plan->context, .count_routing = true});
    const HelloAck ack = all_granted(hello);
    const std::int64_t planned = plan->shards[1].total_bytes();
    const ShardPlan device{.device = "cpu", .threads = 2};
    LayersHandler worker(model, {.device = device, .budget = planned});
    const Result<Prepared> ready = worker.prepare(hello, ack);
    ASSERT_TRUE(ready) << name << ": " << ready.error().message;
    EXPECT_EQ(ready->memory_used, static_cast<std::uint64_t>(planned)) << name;
    LayersHandler smaller(model, {.device = device, .budget = planned - 1});
    EXPECT_FALSE(smaller.prepare(hello, ack)) << name;
    // On a GPU too, whose tables and attention go by the context.
    const ShardLayout got = *hello_layout(model.spec(), hello, ack);
    EXPECT_EQ(got.context, plan->context) << name;
    EXPECT_EQ(gpu_footprint(model, got).total(),
              gpu_footprint(model, plan->shards[1].layout).total())
        << name;
  }
}

// Experts that leave the worker's memory for its file.
TEST(AskingForExperts, AreHeldAgainstTheModelAndTheBudget) {
  const Model model = *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  const ModelSpec& spec = model.spec();
  ShardLayout layout;
  layout.end_layer = spec.n_layer();
  layout.max_rows = 4;
  layout.slots = 1;
  for (const KvGroup& group : kv_groups(spec))
    layout.kv_pages.push_back(group.layers.empty() ? 0 : 1);
  const std::int64_t most = std::int64_t{1} << 40;
  const auto bytes_of = [&](const ShardLayout& asked) {
    const Hello hello = layers_hello(model, asked, {.context = kPageTokens});
    return *check_budget(model, asked, hello, all_granted(hello), {.threads = 1}, most);
  };
  const std::int64_t all = bytes_of(layout);
  for (const LayerSpec& layer : spec.layers) {
    LayerExperts& experts = layout.experts.emplace_back();
    for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
      experts.home.push_back(e % 2 == 0 ? ExpertHome::resident() : ExpertHome::host());
    experts.spare = layer.moe ? 1 : 0;
  }
  Hello hello = layers_hello(model, layout, {.context = kPageTokens});
  const HelloAck ack = all_granted(hello);
  EXPECT_EQ(*decode_hello(encode(hello)), hello);
  const Result<ShardLayout> got = hello_layout(spec, hello, ack);
  ASSERT_TRUE(got) << got.error().message;
  ASSERT_EQ(got->experts.size(), layout.experts.size());
  for (std::size_t l = 0; l < got->experts.size(); ++l) {
    EXPECT_EQ(got->experts[l].home, layout.experts[l].home);
    EXPECT_EQ(got->experts[l].spare, layout.experts[l].spare);
  }
  const std::int64_t part = bytes_of(*got);
  EXPECT_LT(part, all);
  LayersHandler enough(model, {.device = {.device = "cpu", .threads = 1}, .budget = part});
  const Result<Prepared> ready = enough.prepare(hello, ack);
  ASSERT_TRUE(ready) << ready.error().message;
  EXPECT_EQ(ready->memory_used, static_cast<std::uint64_t>(part));
  LayersHandler little(model, {.device = {.device = "cpu", .threads = 1}, .budget = part - 1});
  EXPECT_FALSE(little.prepare(hello, ack));
  // More places than there are experts to come.
  hello.layers.expert_spare.back() = 0xffff;
  EXPECT_FALSE(hello_layout(spec, hello, ack));
  hello.layers.expert_spare.pop_back();
  EXPECT_FALSE(decode_hello(encode(hello)));
  hello.owned.pop_back();
  EXPECT_FALSE(decode_hello(encode(hello)));
}

// Weights besides experts that stay in the worker's file.
TEST_F(AskingForLayers, PartsOfTheFileAreHeldAgainstTheModel) {
  ShardLayout layout = *hello_layout(model_.spec(), hello_, ack());
  const int parts = file_part_count(model_.spec(), layout);
  const auto bytes_with = [&](int n) {
    layout.file_parts = n;
    return *check_budget(model_, layout, hello_, ack(), {.threads = 1}, std::int64_t{1} << 40);
  };
  EXPECT_LT(bytes_with(parts), bytes_with(0));
  hello_.layers.file_parts = static_cast<std::uint16_t>(parts);
  EXPECT_EQ(*decode_hello(encode(hello_)), hello_);
  EXPECT_EQ(hello_layout(model_.spec(), hello_, ack())->file_parts, parts);
  LayersHandler worker(model_,
                       {.device = {.device = "cpu", .threads = 1}, .budget = bytes_with(parts)});
  const Result<Prepared> ready = worker.prepare(hello_, ack());
  ASSERT_TRUE(ready) << ready.error().message;
  EXPECT_EQ(ready->memory_free, 0u);
  hello_.layers.file_parts = static_cast<std::uint16_t>(parts + 1);
  const Result<ShardLayout> refused = hello_layout(model_.spec(), hello_, ack());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid);
}

// Every entry of the page table is page 0, and the row is the last of them.
TEST_F(AskingForLayers, AJobOnMorePagesThanThereAre) {
  LayersHandler worker = handler(std::int64_t{1} << 30);
  ASSERT_TRUE(worker.prepare(hello_, ack()).ok());
  ForwardBody job{.tokens = {1},
                  .sequences = {{.rows = 1, .first_position = positions() - 1, .slot = 0}},
                  .logit_rows = {0}};
  for (std::uint32_t i = 0; i < positions() / kPageTokens; ++i)
    job.page_changes.push_back({.slot = 0, .index = i, .page = 0});
  std::vector<std::byte> body;
  encode_forward_head(job, body);
  const Result<JobOutput> output = worker.run({.op = Op::forward_layers,
                                               .layer = 0,
                                               .flags = kFlagHead,
                                               .rows = 1,
                                               .out_type = WireType::f32},
                                              body, agreed_limits(hello_, ack()), [] {});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, ErrorCode::invalid) << output.error().message;
  EXPECT_NE(output.error().message.find("more pages"), std::string::npos) << output.error().message;
}

}  // namespace
}  // namespace tessera::worker
