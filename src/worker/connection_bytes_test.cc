// What the plan counts for the way to a worker is what is taken for it, and once in a machine.
#include "worker/connection_bytes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "worker/job_layout.h"
#include "worker/layers_handler.h"
#include "worker/remote_experts.h"
#include "worker/ring_memory.h"

namespace tessera::worker {
namespace {

WorkerSite site_at(const char* address, TransportChoice transport) {
  return {.address = *Address::parse(address), .transport = transport};
}

std::int64_t bytes_of_rings(const Hello& hello) {
  const AttachOptions sizes = ring_sizes(hello);
  Fd descriptor;
  const auto memory = RingMemory::create(
      {.to_worker_bytes = sizes.to_worker_bytes, .to_client_bytes = sizes.to_client_bytes}, 1,
      descriptor);
  EXPECT_TRUE(memory);
  struct stat status {};
  EXPECT_EQ(::fstat(descriptor.get(), &status), 0);
  return status.st_size;
}

class ConnectionsOfWorkers : public ::testing::Test {
 protected:
  static constexpr std::int64_t kHeaders = std::int64_t{16} << 10;
  const Model model_ = *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  const WorkerSite shared_ = site_at("unix:/w", TransportChoice::automatic);
  const WorkerSite stream_ = site_at("unix:/w", TransportChoice::stream);
  const WorkerSite elsewhere_ = site_at("tcp:there:1", TransportChoice::automatic);

  ConnectionBytes of(const WorkerSite& site, const ExpertJobs& jobs) const {
    return experts_connection_bytes(site, model_.spec(), jobs, ExpertPayload::f32);
  }
};

TEST_F(ConnectionsOfWorkers, OfExpertsHaveTheirRingsInThisProcessAlone) {
  const ModelSpec& spec = model_.spec();
  for (const int under_way : {1, 2, 8}) {
    const ExpertJobs jobs{.max_rows = 1024, .shards = 1, .under_way = under_way};
    const ConnectionBytes rings = of(shared_, jobs), socket = of(stream_, jobs);
    EXPECT_EQ(rings.there, socket.there);
    EXPECT_EQ(of(elsewhere_, jobs).here, socket.here);
    EXPECT_EQ(of(elsewhere_, jobs).there, socket.there);
    // What waits for a socket, rings hold.
    const auto waiting = static_cast<std::int64_t>(
        experts_body_bytes({.rows = 1024, .pairs = 1024 * model_dims(spec).n_expert_used},
                           static_cast<std::uint32_t>(spec.n_embd), WireType::f32));
    const std::int64_t taken =
        bytes_of_rings(experts_terms(spec, {.max_rows = 1024, .credits = under_way}));
    EXPECT_NEAR(static_cast<double>(rings.here - socket.here + waiting), static_cast<double>(taken),
                kHeaders);
  }
}

// One device that sends its rows at once needs room for one job, and not for all that a worker
// might take.
TEST_F(ConnectionsOfWorkers, OfExpertsHoldTheJobsThatMayBeUnderWay) {
  const auto here = [&](int under_way) {
    return of(shared_, {.max_rows = 1024, .shards = 1, .under_way = under_way}).here;
  };
  EXPECT_LT(4 * here(1), here(kMostExpertJobs));
}

TEST_F(ConnectionsOfWorkers, OfLayersHaveTheirRingsInThisProcessAlone) {
  ShardLayout layout;
  layout.end_layer = 2;
  layout.head = false;
  layout.max_rows = 256;
  layout.slots = 1;
  layout.context = 512;
  for (std::size_t i = 0; i < kv_groups(model_.spec()).size(); ++i) layout.kv_pages.push_back(8);
  const auto of = [&](const WorkerSite& site) {
    return layers_connection_bytes(site, model_.spec(), layout);
  };
  const ConnectionBytes rings = of(shared_), socket = of(stream_);
  EXPECT_EQ(rings.there, socket.there);
  EXPECT_EQ(of(elsewhere_).here, socket.here);
  const std::int64_t taken =
      bytes_of_rings(layers_terms(model_.spec(), layout, {.context = layout.context}));
  EXPECT_NEAR(static_cast<double>(rings.here - socket.here), static_cast<double>(taken), kHeaders);
}

}  // namespace
}  // namespace tessera::worker
