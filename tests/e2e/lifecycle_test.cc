// Start, limits, clients that go away, and the end of the server.

#include <csignal>
#include <filesystem>

#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

constexpr const char* kRunning = "tessera_requests_running";

json endless() {
  return with(greedy("Once", 30000), {{"stream", true}});
}

void start(Client& client, const json& body) {
  ASSERT_TRUE(client.send(http_test::post_request("/v1/completions", body.dump())));
}

TEST(Lifecycle, AClientThatLeavesFreesItsSlot) {
  const Served served({"--parallel", "1", "--prefill-chunk", "8", "--ctx", "32768"});
  {
    Client client(served.port());
    start(client, greedy(some_ids(30000), 5));
    ASSERT_TRUE(served.becomes(kRunning, 1));
  }
  EXPECT_TRUE(served.becomes(kRunning, 0));
  EXPECT_EQ(served.metric("tessera_cancelled_total{phase=\"prefill\"}"), 1);
  {
    Client client(served.port());
    start(client, endless());
    ASSERT_TRUE(client.read_until("data: "));
    EXPECT_EQ(served.metric(kRunning), 1);
  }
  EXPECT_TRUE(served.becomes(kRunning, 0));
  EXPECT_EQ(served.metric("tessera_cancelled_total{phase=\"decode\"}"), 1);
  EXPECT_EQ(served.complete(greedy("Hi", 3)).status, 200);
}

TEST(Lifecycle, AFullQueueAnswers429) {
  const Served served({"--parallel", "1", "--max-queue", "1", "--ctx", "32768"});
  Client running(served.port()), waiting(served.port());
  start(running, endless());
  ASSERT_TRUE(running.read_until("data: "));
  start(waiting, endless());
  ASSERT_TRUE(served.becomes("tessera_requests_queued", 1));
  const Reply refused = served.complete(greedy("Hi", 3));
  EXPECT_EQ(refused.status, 429) << refused.body;
  ASSERT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  running.reset();
  EXPECT_TRUE(waiting.read_until("data: "));
}

TEST(Lifecycle, SigtermLetsAStreamEnd) {
  Served served({"--parallel", "1", "--ctx", "32768", "--drain", "120s"});
  Client client(served.port());
  start(client, with(greedy("Once", 1500), {{"stream", true}}));
  ASSERT_TRUE(client.read_until("data: "));
  served.signal(SIGTERM);
  const Reply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  const auto events = http_test::sse_events(reply.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_NE(reply.body.find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_EQ(served.wait_for_end(), 0) << served.output();
}

TEST(Lifecycle, SigtermEndsAnEndlessStreamInTime) {
  Served served({"--parallel", "1", "--ctx", "32768", "--drain", "1s"});
  Client client(served.port());
  start(client, endless());
  ASSERT_TRUE(client.read_until("data: "));
  served.signal(SIGTERM);
  const Reply reply = client.read_reply();
  EXPECT_NE(reply.body.find("shutting down"), std::string::npos);
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(served.wait_for_end(), 0) << served.output();
}

TEST(Lifecycle, KeysAndBodiesAreChecked) {
  const Served served({"--api-key", "right", "--max-body", "2000"});
  const json body = greedy("Hi", 3);
  EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
  EXPECT_EQ(served.complete(body).status, 401);
  EXPECT_EQ(served.complete(body, "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(served.complete(body, "Authorization: Bearer right\r\n").status, 200);
  EXPECT_EQ(
      served.complete(greedy(std::string(3000, 'a'), 3), "Authorization: Bearer right\r\n").status,
      413);
}

// A model large enough for its weights to be most of the process.
TEST(Memory, ThePlanSaysThePeakAndHealthSaysLoading) {
  const std::string mini = scratch_folder() + "/mini.gguf";
  ASSERT_EQ(run_program({{"synth", "qwen35moe", mini, "--preset", "mini"}}).code, 0);
  {
    Served served({"--ctx", "1024", "--parallel", "1"}, mini, false);
    const int early = http_test::get(served.port(), "/health").status;
    EXPECT_TRUE(early == 503 || early == 200) << early;
    ASSERT_TRUE(served.wait_ready());
    EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
    served.signal(SIGTERM);
    EXPECT_EQ(served.wait_for_end(), 0);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const std::vector<std::string> options = {"--ctx", "4096", "--threads", "2"};
  std::vector<std::string> plan = {"plan", mini, "--json"};
  std::vector<std::string> run = {"run", mini, "-p", std::string(3000, 'a'), "-n", "4", "--json"};
  plan.insert(plan.end(), options.begin(), options.end());
  run.insert(run.end(), options.begin(), options.end());
  const json planned = json::parse(run_program({plan}).out, nullptr, false);
  const Outcome ran = run_program({run});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const double expected = planned["total_bytes"].get<double>();
  EXPECT_NEAR(ran.peak_bytes / expected, 1.0, 0.05) << ran.peak_bytes << " of " << expected;
#endif
  std::filesystem::remove(mini);
}

// The experts that stay in the file are read from it in each step.
TEST(Lifecycle, AModelThatShrinksEndsTheServer) {
  for (const std::vector<std::string>& placement : std::vector<std::vector<std::string>>{
           {"--expert-resident", "0%"},
           {"--expert-resident", "0%", "--target-devices", "cpu:0,cpu:1"}}) {
    SCOPED_TRACE(json(placement).dump());
    const std::string model = scratch_folder() + "/shrinks.gguf";
    std::filesystem::copy_file(tiny_model(), model,
                               std::filesystem::copy_options::overwrite_existing);
    Served served(placement, model);
    ASSERT_EQ(served.complete(greedy("Hi", 3)).status, 200);
    std::filesystem::resize_file(model, 4096);
    EXPECT_EQ(served.complete(greedy("Hi", 3)).status, 500);
    const Reply health = http_test::get(served.port(), "/health");
    EXPECT_EQ(health.status, 503) << health.body;
    EXPECT_NE(health.body.find("shrank"), std::string::npos) << health.body;
    EXPECT_EQ(served.wait(), 3) << served.output();
  }
}

}  // namespace
}  // namespace tessera::testing
