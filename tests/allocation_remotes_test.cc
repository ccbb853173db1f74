// Each allocation in turn fails while a host makes the users of a worker and shakes hands with it,
// at a worker in this process: an error of one line or another try, and nothing left behind.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

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

Status make_shard(const WorkerSite& site, MetricsRegistry& metrics) {
  RemoteShardOptions options{.context = 256};
  options.layout.end_layer = model().spec().n_layer();
  options.layout.max_rows = 16;
  options.layout.kv_pages.assign(kv_groups(model().spec()).size(), 8);
  spare_this_thread(false);
  const auto made = RemoteShard::create(site, options, model(), metrics);
  spare_this_thread(true);
  if (!made) return made.error();
  return (*made)->load(model(), {});
}

class SpareHosts : public ::testing::TestWithParam<TransportChoice> {
 protected:
  // Until nothing is left to fail.
  template <typename Make>
  void check(Role role, Make make) {
    spare_this_thread(true);
    set_log_level(LogLevel::off);
    (void)model();
    const Worker worker;
    const WorkerSite site = worker.site(role, GetParam());
    const ProcessCounts before;
    const int threads = running_threads();
    {
      MetricsRegistry metrics;
      ASSERT_TRUE(make(site, metrics)) << "without a failure";
    }
    int errors = 0, tries = 0;
    for (bool failed = true; failed; ++tries) {
      SCOPED_TRACE(tries);
      MetricsRegistry metrics;
      fail_allocation(tries);
      const Status made = make(site, metrics);
      failed = stop_failing();
      if (made) continue;
      ++errors;
      EXPECT_FALSE(made.error().message.empty());
      EXPECT_EQ(made.error().message.find('\n'), std::string::npos) << made.error().message;
    }
    EXPECT_GT(errors, 5) << "on the calling thread";
    EXPECT_GT(tries, errors + 5) << "the supervisor tries again";
    // The worker may be about to see the last one go.
    const auto settled = [&] {
      const ProcessCounts now;
      return now.descriptors == before.descriptors && now.segments == before.segments;
    };
    for (int i = 0; i < 20'000 && !settled(); ++i) std::this_thread::sleep_for(1ms);
    const ProcessCounts now;
    EXPECT_EQ(now.descriptors, before.descriptors);
    EXPECT_EQ(now.segments, before.segments);
    EXPECT_EQ(running_threads(), threads);
  }
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

}  // namespace
}  // namespace tessera::worker
