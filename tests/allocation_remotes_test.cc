// Each allocation in turn fails while a host makes the users of a worker, shakes hands with it, and
// takes it up again after a loss, at a worker in this process: an error of one line or another try,
// and nothing left behind.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "base/log.h"
#include "tests/allocation_hook.h"
#include "tests/worker/process_counts.h"
#include "worker/experts_handler.h"
#include "worker/layers_handler.h"
#include "worker/remote_experts.h"
#include "worker/remote_shard.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;
using tessera::testing::fail_allocation;
using tessera::testing::ProcessCounts;
using tessera::testing::running_threads;
using tessera::testing::spare_this_thread;
using tessera::testing::stop_failing;

const Model& model() {
  static const Model kModel =
      *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  return kModel;
}

// Grants whatever is asked for, and computes nothing.
class Granting final : public JobHandler {
 public:
  Result<Prepared> prepare(const Hello&, const HelloAck&) override { return Prepared{}; }
  Result<JobOutput> run(const FrameHeader&, std::span<const std::byte>, const WireLimits&,
                        const Near&) override {
    return Error::make(ErrorCode::internal, "no job was sent");
  }
};

// Serves one client after another.
class Worker {
 public:
  Worker()
      : listener_(*Listener::open(
            *Address::parse(fmt::format("unix:{}spare_{}", ::testing::TempDir(), ::getpid())))) {
    thread_ = std::thread([this] {
      spare_this_thread(true);
      const WorkerOffer offer{.roles = role_bit(Role::layers) | role_bit(Role::experts),
                              .model = model_digest(model().file()),
                              .dims = model_dims(model().spec())};
      Granting handler;
      while (!listener_.stopped()) {
        const Result<std::unique_ptr<Channel>> client = listener_.accept({}, after(1h));
        Stats stats;
        if (client && *client) (void)serve(**client, offer, handler, stats);
      }
    });
  }
  ~Worker() {
    listener_.stop();
    thread_.join();
  }
  WorkerSite site(Role role, TransportChoice transport) const {
    WorkerSite made{.name = "worker:spare", .role = role, .address = listener_.address()};
    made.transport = transport;
    made.lifecycle.backoff_first = made.lifecycle.backoff_most = 1ms;
    return made;
  }

 private:
  Listener listener_;
  std::thread thread_;
};

Status make_experts(const WorkerSite& site, MetricsRegistry& metrics) {
  std::vector<LayerExperts> experts(model().spec().layers.size());
  for (std::size_t l = 0; l < experts.size(); ++l)
    if (const auto& moe = model().spec().layers[l].moe)
      experts[l].home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::worker(0));
  const ExpertConnectionOptions options{.experts = experts, .max_rows = 8};
  spare_this_thread(false);
  const auto made = ExpertConnection::create(site, options, model(), metrics);
  spare_this_thread(true);
  if (!made) return made.error();
  return (*made)->wait_ready();
}

RemoteShardOptions shard_options() {
  static RoutingCounts counts(model().spec());
  RemoteShardOptions options{.context = 256, .counts = &counts};
  options.layout.end_layer = model().spec().n_layer();
  options.layout.max_rows = 16;
  options.layout.slots = 1;
  options.layout.kv_pages.assign(kv_groups(model().spec()).size(), 8);
  return options;
}

Status make_shard(const WorkerSite& site, MetricsRegistry& metrics) {
  const RemoteShardOptions options = shard_options();
  spare_this_thread(false);
  const auto made = RemoteShard::create(site, options, model(), metrics);
  const Status loaded = made ? (*made)->load(model(), {}) : Status(made.error());
  spare_this_thread(true);
  return loaded;
}

// A job, which the worker fails; then the shard is lost.
Status ask(Shard& shard) {
  const TokenId token = 1;
  const std::int32_t page = 0;
  const std::span<const std::int32_t> table(&page, 1);
  const std::vector<std::span<const std::int32_t>> tables(shard_options().layout.kv_pages.size(),
                                                          table);
  const SequenceRows rows{.n_rows = 1, .pages = tables};
  Piece piece;
  piece.allocate({.max_rows = 1, .n_embd = model().spec().n_embd});
  piece.take({.tokens = {&token, 1}, .sequences = {&rows, 1}}, {0, 1});
  TESSERA_TRY(shard.prepare(piece));
  TESSERA_TRY(shard.start(piece));
  return shard.finish(piece, [] {});
}

template <typename Done>
bool eventually(Done done) {
  for (int i = 0; i < 20'000 && !done(); ++i) std::this_thread::sleep_for(1ms);
  return done();
}

class SpareHosts : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void SetUp() override {
    spare_this_thread(true);
    set_log_level(LogLevel::off);
    (void)model();
    worker_ = std::make_unique<Worker>();
    before_ = std::make_unique<ProcessCounts>();
    threads_ = running_threads();
  }
  // The worker may be about to see the last one go, and the system lists a thread for a moment
  // after it was joined.
  void TearDown() override {
    const auto settled = [&] {
      const ProcessCounts now;
      return now.descriptors == before_->descriptors && now.segments == before_->segments &&
             running_threads() <= threads_;
    };
    EXPECT_TRUE(eventually(settled)) << running_threads() << " threads, " << threads_ << " before";
  }
  WorkerSite site(Role role) const { return worker_->site(role, GetParam()); }

  // Each allocation in turn, until nothing is left to fail. `use` has the n-th from somewhere on
  // fail and says what became of it; returns how often that were errors, of how many.
  template <typename Use>
  static std::pair<int, int> fail_each(Use use) {
    int errors = 0, tries = 0;
    for (bool failed = true; failed; ++tries) {
      SCOPED_TRACE(tries);
      const Status done = use(tries);
      failed = stop_failing();
      if (done) continue;
      ++errors;
      EXPECT_FALSE(done.error().message.empty());
      EXPECT_EQ(done.error().message.find('\n'), std::string::npos) << done.error().message;
    }
    return {errors, tries};
  }

  template <typename Make>
  void check(Role role, Make make) {
    const auto use = [&](int n) {
      MetricsRegistry metrics;
      fail_allocation(n);
      return make(site(role), metrics);
    };
    ASSERT_TRUE(use(-1)) << "without a failure";
    const auto [errors, tries] = fail_each(use);
    EXPECT_GT(errors, 5) << "on the calling thread";
    EXPECT_GT(tries, errors + 5) << "the supervisor tries again";
  }

 private:
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<ProcessCounts> before_;
  int threads_ = 0;
};
INSTANTIATE_TEST_SUITE_P(, SpareHosts,
                         ::testing::Values(TransportChoice::shared, TransportChoice::stream),
                         [](const auto& info) {
                           return info.param == TransportChoice::shared ? "shared" : "stream";
                         });

TEST_P(SpareHosts, WithWorkersOfExpertsLeaveNothing) {
  check(Role::experts, make_experts);
}

TEST_P(SpareHosts, WithWorkersOfLayersLeaveNothing) {
  check(Role::layers, make_shard);
}

// What fails is one restart; the next one takes the worker up, and jobs reach it.
TEST_P(SpareHosts, TakeALostShardUpAgain) {
  MetricsRegistry metrics;
  const auto made = RemoteShard::create(site(Role::layers), shard_options(), model(), metrics);
  ASSERT_TRUE(made) << made.error().message;
  Shard& shard = **made;
  ASSERT_TRUE(shard.load(model(), {}));
  const auto serves = [&] {
    ASSERT_TRUE(eventually([&] { return shard.restart().ok(); }));
    const Status failed = ask(shard);
    EXPECT_NE(failed.error().message.find("no job was sent"), std::string::npos)
        << failed.error().message;
    ASSERT_TRUE(eventually([&] { return shard.ready().ok(); }));
  };
  const auto [errors, tries] = fail_each([&](int n) {
    serves();
    fail_allocation(n);
    spare_this_thread(false);
    const Status again = shard.restart();
    spare_this_thread(true);
    return again;
  });
  EXPECT_GE(errors, 3) << "what the shard keeps of a worker";
  serves();
}

}  // namespace
}  // namespace tessera::worker
