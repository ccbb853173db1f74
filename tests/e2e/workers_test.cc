// A served model with layers in a worker: its answers, what happens when the worker dies, and that
// nothing outlives the server.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>

#include "tests/cli/reluctant_worker.h"
#include "tests/e2e/served_model.h"
#include "tests/send_signal.h"

namespace tessera::testing {
namespace {

// The worker whose parent is the server; 0: there is none.
int worker_of(const Served& served) {
  std::vector<int> children;
  eventually([&] { return !(children = served.children()).empty(); });
  return children.empty() ? 0 : children.front();
}

bool is_gone(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  file >> number >> name >> state;
  return !file || state == "Z" || state == "X";
}

// Cut by hand: measured times may move the cut from one start to the next.
std::vector<std::string> with_layers_in_a_worker(std::vector<std::string> options,
                                                 const std::string& worker = "layers") {
  for (const char* word : {"--spawn-worker", worker.c_str(), "--target-devices", "cpu,worker:0",
                           "--target-layer-split", "3,1"})
    options.push_back(word);
  return options;
}

std::string answer_of(const Reply& reply) {
  return reply.json()["choices"][0]["text"].get<std::string>();
}

TEST(Workers, AnswersAreThoseOfOneProcess) {
  const json body = greedy(some_ids(300), 40);
  const Served plain({"--parallel", "2"});
  const Served split(with_layers_in_a_worker({"--parallel", "2"}, "layers,threads=1"));
  const Reply expected = plain.complete(body), got = split.complete(body);
  ASSERT_EQ(expected.status, 200) << expected.body;
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(answer_of(got), answer_of(expected));
  const json plan = json::parse(http_test::get(split.port(), "/props").body)["plan"];
  ASSERT_EQ(plan["shards"].size(), 2u);
  EXPECT_EQ(plan["shards"][1]["device"], "worker:0");
  EXPECT_EQ(plan["shards"][1]["remote"], true);
}

TEST(Workers, ADeadWorkerFailsWhatRunsAndComesBack) {
  const Gate gate(true);
  const Served served(with_layers_in_a_worker({"--parallel", "2", "--ctx", "32768"},
                                              "layers,bin=" + gate.worker()));
  const json body = greedy(some_ids(100), 8);
  const Reply before = served.complete(body);
  ASSERT_EQ(before.status, 200) << before.body;
  Client running(served.port());
  ASSERT_TRUE(
      running.send(http_test::post_request("/v1/completions", greedy(some_ids(50), 30000).dump())));
  ASSERT_TRUE(served.becomes("tessera_requests_running", 1));
  gate.close();
  send_signal(worker_of(served), SIGKILL);
  const Reply lost = running.read_reply();
  EXPECT_EQ(lost.status, 503) << lost.body;
  EXPECT_EQ(lost.json()["error"]["type"], "unavailable_error");
  EXPECT_TRUE(lost.headers.contains("retry-after"));
  EXPECT_EQ(served.complete(body).status, 503);
  // How it ended is known a moment after that it did.
  Reply health;
  EXPECT_TRUE(eventually([&] {
    health = http_test::get(served.port(), "/health");
    return health.status != 503 || health.body.find("signal 9 (Killed)") != std::string::npos;
  }));
  EXPECT_EQ(health.status, 503) << health.body;
  EXPECT_EQ(health.json()["status"], "recovering") << health.body;
  gate.open();
  ASSERT_TRUE(eventually([&] { return http_test::get(served.port(), "/health").status == 200; }));
  const Reply after = served.complete(body);
  ASSERT_EQ(after.status, 200) << after.body;
  EXPECT_EQ(answer_of(after), answer_of(before));
  EXPECT_EQ(served.metric("tessera_worker_starts_total{worker=\"worker:0\",reason=\"exited\"}"), 1);
  EXPECT_EQ(served.metric("tessera_worker_deaths_total{worker=\"worker:0\",reason=\"exited\"}"), 1);
}

// Killed again and again in the middle of an answer, each time once it has computed some of it.
TEST(Workers, ADeadWorkerOfExpertsCostsNoAnswer) {
  const Served served({"--parallel", "2", "--spawn-worker", "experts", "--expert-resident", "30%",
                       "--threads", "1"});
  const auto pairs = [&] { return served.metric("tessera_moe_pairs_total{tier=\"worker\"}"); };
  const json body = greedy(some_ids(200), 300);
  const Reply before = served.complete(body);
  ASSERT_EQ(before.status, 200) << before.body;
  int kills = 0;
  // While a new one starts, and where it is late, the host computes: then nobody is killed.
  EXPECT_TRUE(eventually([&] {
    std::atomic<bool> answered{false};
    std::thread killer([&, had = pairs()] {
      while (!answered && pairs() == had) std::this_thread::yield();
      if (answered) return;
      send_signal(worker_of(served), SIGKILL);
      ++kills;
    });
    const Reply reply = served.complete(body);
    answered = true;
    killer.join();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(answer_of(reply), answer_of(before));
    EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
    return kills == 3;
  }));
  EXPECT_TRUE(
      served.reaches("tessera_worker_deaths_total{worker=\"worker:0\",reason=\"exited\"}", 3));
}

// Whoever asks is told what is away and why; requests go on where the host stands in.
TEST(Workers, HealthSaysWhyExpertsAreAway) {
  for (const bool required : {false, true}) {
    const Gate gate(true);
    std::vector<std::string> options = {"--parallel",        "2",
                                        "--spawn-worker",    "experts,bin=" + gate.worker(),
                                        "--expert-resident", "30%"};
    if (required) options.push_back("--expert-ipc-required");
    const Served served(options);
    const auto health = [&] { return http_test::get(served.port(), "/health"); };
    ASSERT_TRUE(eventually([&] { return health().json()["status"] == "ok"; }));
    gate.close();
    send_signal(worker_of(served), SIGKILL);
    Reply reply;
    ASSERT_TRUE(eventually([&] {
      reply = health();
      return reply.body.find("): signal 9 (Killed)") != std::string::npos;
    })) << reply.body;
    EXPECT_NE(reply.body.find("worker:0 is away ("), std::string::npos) << reply.body;
    EXPECT_EQ(reply.status, required ? 503 : 200);
    EXPECT_EQ(reply.json()["status"], required ? "recovering" : "degraded");
    EXPECT_EQ(served.complete(greedy(some_ids(20), 2)).status, required ? 503 : 200);
    gate.open();
    EXPECT_TRUE(eventually([&] { return health().json()["status"] == "ok"; }));
    EXPECT_EQ(served.complete(greedy(some_ids(20), 2)).status, 200);
  }
}

// A worker that listens without a model file: the server sends it its layers.
TEST(Workers, WithoutAFileAreSentTheModel) {
  const std::string address = "unix:" + scratch_folder() + "/fileless.sock";
  const json body = greedy(some_ids(200), 20);
  const Served plain({"--parallel", "2"});
  const std::string expected = answer_of(plain.complete(body));
  const auto listening = [&] {
    auto worker = std::make_unique<ServerProcess>(
        std::vector<std::string>{"--listen", address, "--threads", "1"}, "worker");
    EXPECT_TRUE(worker->wait_for("worker ready at")) << worker->output();
    return worker;
  };
  std::unique_ptr<ServerProcess> worker = listening();
  // Cut by hand: measured times may move the cut from one start to the next.
  const std::vector<std::string> options = {"--parallel",           "2",
                                            "--target-devices",     "cpu,worker:" + address,
                                            "--target-layer-split", "3,1"};
  {
    const Served first(options);
    EXPECT_EQ(answer_of(first.complete(body)), expected) << first.output();
    EXPECT_NE(first.output().find("sending weights to it"), std::string::npos) << first.output();
    EXPECT_NE(worker->output().find("receiving weights"), std::string::npos) << worker->output();
  }
  // What it holds it holds for the next server too.
  const Served second(options);
  EXPECT_EQ(answer_of(second.complete(body)), expected) << second.output();
  EXPECT_EQ(second.output().find("sending weights"), std::string::npos) << second.output();
  // One that starts anew gets it again, from the server that is running.
  worker.reset();
  ASSERT_TRUE(eventually([&] { return http_test::get(second.port(), "/health").status == 503; }));
  worker = listening();
  ASSERT_TRUE(eventually([&] { return http_test::get(second.port(), "/health").status == 200; }));
  EXPECT_EQ(answer_of(second.complete(body)), expected);
  EXPECT_NE(second.output().find("sending weights"), std::string::npos) << second.output();
}

TEST(Workers, WithoutAFileAreSentExperts) {
  const std::string address = "unix:" + scratch_folder() + "/fileless-experts.sock";
  ServerProcess worker({"--listen", address, "--threads", "1"}, "worker");
  ASSERT_TRUE(worker.wait_for("worker ready at")) << worker.output();
  const json body = greedy(some_ids(200), 20);
  const Served plain({"--parallel", "2", "--threads", "1"});
  const Served served({"--parallel", "2", "--threads", "1", "--expert-resident", "30%",
                       "--expert-worker", address, "--expert-ipc-required"});
  const Reply expected = plain.complete(body), got = served.complete(body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(answer_of(got), answer_of(expected));
  EXPECT_NE(worker.output().find("loaded"), std::string::npos) << worker.output();
}

// A step that waits for a stopped worker would end only with --worker-timeout.
TEST(Workers, AStoppedOneDoesNotHoldUpTheEnd) {
  Served served(
      with_layers_in_a_worker({"--drain", "1s", "--worker-timeout", "3600s", "--ctx", "32768"}));
  Client running(served.port());
  ASSERT_TRUE(
      running.send(http_test::post_request("/v1/completions", greedy(some_ids(50), 30000).dump())));
  ASSERT_TRUE(served.becomes("tessera_requests_running", 1));
  send_signal(worker_of(served), SIGSTOP);
  served.signal(SIGINT);
  EXPECT_EQ(served.wait_for_end(), 0);  // within two minutes
}

// Nor does it take all of the drain: what waits for it fails once it has been suspect for a while.
TEST(Workers, AStoppedOneDoesNotTakeAllOfTheDrain) {
  const std::vector<std::string> limits = {
      "--drain", "600s", "--worker-timeout", "3600s", "--parallel", "1", "--ctx", "32768"};
  std::vector<std::string> experts = limits;
  experts.insert(experts.end(), {"--spawn-worker", "experts", "--expert-resident", "30%",
                                 "--expert-ipc-required"});
  for (const std::vector<std::string>& options : {with_layers_in_a_worker(limits), experts}) {
    Served served(options);
    Client running(served.port()), queued(served.port());
    for (Client* client : {&running, &queued}) {
      ASSERT_TRUE(client->send(
          http_test::post_request("/v1/completions", greedy(some_ids(50), 30000).dump())));
      ASSERT_TRUE(served.becomes("tessera_requests_running", 1));
    }
    ASSERT_TRUE(served.becomes("tessera_requests_queued", 1));
    send_signal(worker_of(served), SIGSTOP);
    served.signal(SIGTERM);
    for (Client* client : {&running, &queued}) {
      const Reply lost = client->read_reply();
      EXPECT_EQ(lost.status, 503) << lost.body;
      EXPECT_EQ(lost.json()["error"]["reason"], "shard_lost") << lost.body;
    }
    EXPECT_EQ(served.wait_for_end(), 0) << served.output();  // within two minutes
    EXPECT_NE(served.output().find("suspect -> dead: it does not answer"), std::string::npos)
        << served.output();
  }
}

// And none is started meanwhile.
TEST(Workers, SeveralStoppedOnesEndWithTheServer) {
  Served served({"--spawn-worker", "layers,threads=1", "--spawn-worker", "layers,threads=1",
                 "--spawn-worker", "layers,threads=1", "--target-devices",
                 "cpu,worker:0,worker:1,worker:2", "--target-layer-split", "1,1,1,1"});
  const std::vector<int> workers = served.children();
  ASSERT_EQ(workers.size(), 3u);
  for (const int worker : workers) send_signal(worker, SIGSTOP);
  served.signal(SIGINT);
  EXPECT_TRUE(eventually([&] { return std::ranges::all_of(workers, is_gone); }));
  EXPECT_EQ(served.wait_for_end(), 0) << served.output();
  const std::string log = served.output();
  EXPECT_EQ(log.find("-> starting", log.find("stopping: ")), std::string::npos) << log;
  for (const int worker : workers) EXPECT_TRUE(is_gone(worker));
}

// A service manager sends it to all of a service.
TEST(Workers, SigtermToThemTooLetsAStreamEnd) {
  Served served(with_layers_in_a_worker({"--drain", "120s", "--ctx", "32768"}));
  Client client(served.port());
  const json body = with(greedy(some_ids(50), 1500), {{"stream", true}});
  ASSERT_TRUE(client.send(http_test::post_request("/v1/completions", body.dump())));
  ASSERT_TRUE(client.read_until("data: "));
  const int worker = worker_of(served);
  send_signal(worker, SIGTERM);
  served.signal(SIGTERM);
  send_signal(worker, SIGTERM);
  const Reply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos) << reply.body.substr(0, 1000);
  EXPECT_EQ(served.wait_for_end(), 0) << served.output();
  EXPECT_TRUE(eventually([&] { return is_gone(worker); }));
}

TEST(Workers, EndWithTheServer) {
  {
    Served served(with_layers_in_a_worker({}));
    const int worker = worker_of(served);
    ASSERT_GT(worker, 0);
    served.signal(SIGTERM);
    EXPECT_EQ(served.wait_for_end(), 0) << served.output();
    EXPECT_TRUE(eventually([&] { return is_gone(worker); }));
  }
  const Served served(with_layers_in_a_worker({}));
  const int worker = worker_of(served);
  ASSERT_GT(worker, 0);
  served.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return is_gone(worker); }));
}

}  // namespace
}  // namespace tessera::testing
