// A server whose only GPU fails while it answers: who asked is told, /health turns red, and the
// process ends with a code of its own. The GPU is emulated.
#include "cli/output.h"
#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

// It fails at the so many-th kernel or graph: in the midst of an answer; the start launches none.
constexpr int kLaunches = 120;

// A client waits for half a minute, in which an emulated GPU may not have come far.
Reply await_reply(Client& client) {
  Reply reply;
  eventually([&] { return (reply = client.read_reply()).status != 0; });
  return reply;
}

TEST(GpuFault, TurnsHealthRedAndEndsTheServer) {
  Served served(
      {"--parallel", "2", "--target-devices", "cuda:0", "--gpu-plugins", TESSERA_EMULATED_PLUGINS},
      tiny_model(), true, {"EMULATED_GPUS=1", "EMULATED_FAULT=0:" + std::to_string(kLaunches)});
  EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
  const std::string whole =
      http_test::post_request("/v1/completions", greedy(some_ids(20), 30000).dump());
  const std::string streamed = http_test::post_request(
      "/v1/completions", with(greedy(some_ids(30), 30000), {{"stream", true}}).dump());
  Client stream(served.port());
  ASSERT_TRUE(stream.send(streamed));
  // The questions behind the first answer are answered right after it, however busy the machine is:
  // the server ends five seconds later.
  Client client(served.port());
  ASSERT_TRUE(client.send(whole + http_test::get_request("/health") + whole));
  const Reply failed = await_reply(client);
  EXPECT_EQ(failed.status, 500) << failed.body;
  EXPECT_NE(failed.body.find("cudaErrorIllegalAddress"), std::string::npos) << failed.body;
  const Reply health = client.read_reply();
  EXPECT_EQ(health.status, 503) << health.body;
  EXPECT_EQ(health.json()["status"], "error") << health.body;
  EXPECT_NE(health.body.find("cudaErrorIllegalAddress"), std::string::npos) << health.body;
  const Reply later = client.read_reply();
  EXPECT_GE(later.status, 500) << later.body;
  EXPECT_NE(later.body.find("engine_fault"), std::string::npos) << later.body;
  EXPECT_TRUE(stream.read_until("cudaErrorIllegalAddress")) << stream.input();
  EXPECT_TRUE(served.says("the engine failed, so the server ends: ")) << served.output();
  EXPECT_EQ(served.wait(), cli::kExitFault);
  const std::string output = served.output();
  const std::string last = output.substr(output.find("the engine failed"));
  EXPECT_NE(last.find("cuda:0"), std::string::npos) << output;
  EXPECT_NE(last.find("cudaErrorIllegalAddress"), std::string::npos) << output;
}

}  // namespace
}  // namespace tessera::testing
