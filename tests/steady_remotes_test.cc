// The users of a worker allocate nothing either once the first jobs have been, nor do the roles
// that compute for them: experts and layers of a model, at a worker in this process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/allocation_hook.h"
#include "worker/experts_handler.h"
#include "worker/layers_handler.h"
#include "worker/remote_experts.h"
#include "worker/remote_shard.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;
using tessera::testing::allocations;

// Frames, heartbeats and threads meet differently from round to round, so that something may come
// late to its first memory.
constexpr std::int64_t kLate = 8;
constexpr int kRounds = 600, kFirst = 100;

const Model& model() {
  static const Model kModel =
      *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  return kModel;
}

// Listens for one client.
class OneClient {
 public:
  OneClient(JobHandler& handler, Role role)
      : listener_(*Listener::open(
            *Address::parse(fmt::format("unix:{}steady_{}", ::testing::TempDir(), ::getpid())))) {
    const WorkerOffer offer{.roles = role_bit(role),
                            .model = model_digest(model().file()),
                            .dims = model_dims(model().spec())};
    thread_ = std::thread([this, offer, &handler] {
      Result<std::unique_ptr<Channel>> client = listener_.accept({}, after(20s));
      ASSERT_TRUE(client && *client);
      Stats stats;
      EXPECT_TRUE(serve(**client, offer, handler, stats));
    });
  }
  ~OneClient() { thread_.join(); }

  WorkerSite site(Role role, TransportChoice transport) const {
    return {.name = "worker:steady",
            .role = role,
            .spawn = std::nullopt,
            .probe_arguments = {},
            .address = listener_.address(),
            .token = {},
            .transport = transport};
  }

 private:
  Listener listener_;
  std::thread thread_;
};

std::string transport_name(const ::testing::TestParamInfo<TransportChoice>& info) {
  return info.param == TransportChoice::shared ? "shared" : "stream";
}

class SteadyExperts : public ::testing::TestWithParam<std::tuple<TransportChoice, ExpertPayload>> {
};
INSTANTIATE_TEST_SUITE_P(
    , SteadyExperts,
    ::testing::Combine(::testing::Values(TransportChoice::shared, TransportChoice::stream),
                       ::testing::Values(ExpertPayload::f32, ExpertPayload::f16,
                                         ExpertPayload::int16)));

TEST_P(SteadyExperts, AllocateNothing) {
  const auto [transport, payload] = GetParam();
  const ModelSpec& spec = model().spec();
  std::vector<LayerExperts> experts(spec.layers.size());
  for (std::size_t l = 0; l < experts.size(); ++l)
    if (const auto& moe = spec.layers[l].moe)
      experts[l].home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::worker(0));
  ExpertsHandler handler(
      model(), {.device = {.device = "cpu", .threads = 1}, .budget = std::int64_t{1} << 30});
  OneClient worker(handler, Role::experts);
  MetricsRegistry metrics;
  const auto connection = *ExpertConnection::create(
      worker.site(Role::experts, transport),
      {.experts = experts, .max_rows = 8, .payload = payload}, model(), metrics);
  ASSERT_TRUE(connection->wait_ready());
  const auto executor = connection->executor();

  const std::size_t width = static_cast<std::size_t>(spec.n_embd);
  const std::vector<float> rows(8 * width, 0.5f);
  std::vector<double> sums(rows.size());
  std::vector<RoutedPair> pairs;
  for (int row = 0; row < 8; ++row)
    for (int slot = 0; slot < 2; ++slot)
      pairs.push_back({.row = row, .expert = 2 * slot + row % 2, .slot = slot, .weight = 0.5f});
  std::int64_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kFirst) before = allocations();
    const int n_rows = round % 2 == 0 ? 8 : 1;
    const auto n = static_cast<std::size_t>(n_rows);
    for (int job = 0; job < 3; ++job)
      ASSERT_TRUE(executor->submit({.layer = round % spec.n_layer(),
                                    .n_rows = n_rows,
                                    .rows = std::span(rows).first(n * width),
                                    .pairs = std::span(pairs).first(2 * n)}));
    for (int job = 0; job < 3; ++job)
      ASSERT_TRUE(executor->collect(std::span(sums).first(n * width)));
  }
  EXPECT_LE(allocations() - before, kLate);
}

class SteadyShard : public ::testing::TestWithParam<TransportChoice> {};
INSTANTIATE_TEST_SUITE_P(, SteadyShard,
                         ::testing::Values(TransportChoice::shared, TransportChoice::stream),
                         transport_name);

// Steps of a sequence in the later half of the layers, two pieces under way.
TEST_P(SteadyShard, AllocatesNothing) {
  constexpr int kContext = 256, kRows = 16;
  const ModelSpec& spec = model().spec();
  ShardLayout layout;
  layout.first_layer = spec.n_layer() / 2;
  layout.end_layer = spec.n_layer();
  layout.embedding = false;
  layout.head = true;
  layout.max_rows = kRows;
  layout.max_logit_rows = layout.slots = 1;
  layout.context = kContext;
  std::vector<std::int32_t> table;
  for (std::int32_t page = 0; page < kContext / kPageTokens; ++page) table.push_back(page);
  std::vector<std::span<const std::int32_t>> tables;
  for (std::size_t group = 0; group < kv_groups(spec).size(); ++group) {
    layout.kv_pages.push_back(kContext / kPageTokens);
    tables.push_back(table);
  }
  LayersHandler handler(
      model(), {.device = {.device = "cpu", .threads = 1}, .budget = std::int64_t{1} << 30});
  OneClient worker(handler, Role::layers);
  MetricsRegistry metrics;
  RoutingCounts counts(spec);
  const auto shard = *RemoteShard::create(
      worker.site(Role::layers, GetParam()),
      {.layout = layout, .context = kContext, .counts = &counts}, model(), metrics);
  const Status loaded = shard->load(model(), {});
  ASSERT_TRUE(loaded) << loaded.error().message;

  const std::vector<TokenId> tokens(kRows, 5);
  std::array<Piece, 2> pieces;
  for (Piece& piece : pieces) piece.allocate({.max_rows = kRows, .n_embd = spec.n_embd});
  const std::function<void()> near = [] {};
  std::int64_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kFirst) before = allocations();
    const int n_rows = round % 2 == 0 ? kRows : 1;
    const std::int32_t last = n_rows - 1;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const SequenceRows rows{.n_rows = n_rows,
                              .first_position = 17 * (round % 13) + static_cast<int>(i),
                              .slot = 0,
                              .pages = tables};
      Piece& piece = pieces[i];
      piece.changes.clear();
      piece.changes.push_back({.kind = StateChange::Kind::reset_slot});
      piece.take({.tokens = std::span(tokens).first(static_cast<std::size_t>(n_rows)),
                  .sequences = {&rows, 1},
                  .logit_rows = {&last, 1}},
                 {0, n_rows});
      std::fill(piece.hidden().begin(), piece.hidden().end(), 0.01f);
      ASSERT_TRUE(shard->prepare(piece));
      ASSERT_TRUE(shard->start(piece));
    }
    for (Piece& piece : pieces) {
      const Status finished = shard->finish(piece, near);
      ASSERT_TRUE(finished) << round << ": " << finished.error().message;
    }
  }
  EXPECT_LE(allocations() - before, kLate);
  EXPECT_TRUE(std::ranges::any_of(counts.take(layout.first_layer), [](auto n) { return n > 0; }))
      << "and tells what it counts meanwhile";
}

}  // namespace
}  // namespace tessera::worker
