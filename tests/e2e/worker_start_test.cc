// Workers that start slowly or not at all: the server begins without those of experts, and says
// that it is loading while it waits for those of layers.
#include "tests/cli/reluctant_worker.h"
#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

std::vector<std::string> options(const std::string& program) {
  return {"--spawn-worker", "experts,bin=" + program, "--expert-resident", "30%"};
}

std::string long_answer(const Served& served) {
  const Reply reply = served.complete(greedy(some_ids(60), 20));
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.json()["choices"][0]["text"].get<std::string>();
}

TEST(WorkerStart, OneThatFailsIsComputedForAndTriedAgain) {
  const std::string gate = scratch_folder() + "/gate";
  std::filesystem::remove(gate);
  const Served served(options(reluctant_worker("exit 3", gate)));
  const std::string before = long_answer(served);
  EXPECT_TRUE(served.becomes("tessera_worker_state{worker=\"worker:0\"}", 4));  // backoff
  EXPECT_GE(served.metric("tessera_moe_fallback_total{reason=\"unavailable\"}"), 1);
  EXPECT_GE(
      served.metric("tessera_worker_deaths_total{worker=\"worker:0\",reason=\"start_failed\"}"), 1);
  write_file(gate, "");
  EXPECT_TRUE(served.becomes("tessera_worker_state{worker=\"worker:0\"}", 1));  // healthy
  const double jobs = served.metric("tessera_moe_bytes_total{dir=\"out\"}");
  EXPECT_EQ(long_answer(served), before);
  EXPECT_GT(served.metric("tessera_moe_bytes_total{dir=\"out\"}"), jobs);
}

TEST(WorkerStart, OneThatIsSlowIsNotWaitedFor) {
  const Served served(options(reluctant_worker("sleep 600", missing_path())));
  EXPECT_FALSE(long_answer(served).empty());
  EXPECT_EQ(served.metric("tessera_worker_starts_total{worker=\"worker:0\",reason=\"first\"}"), 1);
  // Attaching is given up in the end; whoever waits for the worker is not ready before.
  const std::string log = served.output();
  EXPECT_LT(log.find("Try: curl"), log.find("worker:0: starting -> dead")) << log;
}

// The port is open from before the model is loaded, and requests are told so.
TEST(WorkerStart, OneWithLayersIsWaitedForWithThePortOpen) {
  const Gate gate(false);
  Served served({"--spawn-worker", "layers,threads=1,bin=" + gate.worker(), "--target-devices",
                 "cpu,worker:0", "--target-layer-split", "3,1"},
                tiny_model(), false);
  for (const char* path : {"/health", "/ready"}) {
    const Reply reply = http_test::get(served.port(), path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_EQ(reply.json()["status"], "loading") << path;
  }
  const Reply refused = served.complete(greedy("Hi", 3));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "loading");
  EXPECT_EQ(http_test::get(served.port(), "/metrics").status, 200);
  gate.open();
  ASSERT_TRUE(served.wait_ready()) << served.output();
  EXPECT_EQ(http_test::get(served.port(), "/ready").status, 200);
  EXPECT_EQ(served.complete(greedy("Hi", 3)).status, 200);
}

}  // namespace
}  // namespace tessera::testing
