// `tessera worker MODEL --listen ADDRESS` as a person starts it, with layers or experts of a server
// that finds it by its address, over unix sockets and TCP: the answers of one process, one client
// at a time, death and return at the same address, and weights that stay for the next client.
#include <algorithm>
#include <csignal>
#include <optional>

#include "device/cpu/isa.h"
#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

const std::string& token_file() {
  static const std::string path = [] {
    std::string file = scratch_folder() + "/token";
    write_file(file, "a token of thirty-two characters\n");
    return file;
  }();
  return path;
}

// At the address that it was given, or chose.
class ListeningWorker {
 public:
  explicit ListeningWorker(const std::string& listen, const std::string& isa = "auto")
      : process_({tiny_model(), "--listen", listen, "--threads", "1", "--token-file", token_file(),
                  "--log-level", "info", "--cpu-isa", isa},
                 "worker") {
    const std::string ready = "worker ready at ";
    if (!process_.wait_for(ready)) {
      ADD_FAILURE() << "no worker at " << listen << ": " << output();
      return;
    }
    const std::string text = output();
    const std::size_t at = text.find(ready) + ready.size();
    address_ = text.substr(at, text.find('\n', at) - at);
  }
  const std::string& address() const { return address_; }
  std::string output() const { return process_.output(); }
  bool says(const std::string& text) { return process_.wait_for(text); }
  void signal(int number) const { process_.signal(number); }
  int wait() { return process_.wait(); }
  int loads() const {
    const std::string text = output();
    int count = 0;
    for (std::size_t at = 0; (at = text.find("loaded ", at)) != std::string::npos; ++at) ++count;
    return count;
  }

 private:
  ServerProcess process_;
  std::string address_;
};

std::string text_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.status == 200 ? reply.json()["choices"][0]["text"].get<std::string>() : "";
}

void expect_health_says(const Served& served, const std::string& text) {
  std::string health;
  EXPECT_TRUE(eventually([&] {
    health = http_test::get(served.port(), "/health").body;
    return health.find(text) != std::string::npos;
  })) << health;
}

using Case = std::tuple<bool, bool>;  // layers, tcp

class WorkerAtAnAddress : public ::testing::TestWithParam<Case> {
 protected:
  bool layers() const { return std::get<0>(GetParam()); }
  bool tcp() const { return std::get<1>(GetParam()); }
  // Port 0: the system chooses one that nobody has.
  std::string listen() const {
    return tcp() ? "tcp:127.0.0.1:0" : "unix:" + scratch_folder() + "/worker.sock";
  }
  std::vector<std::string> options(const std::string& address) const {
    std::vector<std::string> words = {"--parallel",   "2",         "--ctx", "2048",
                                      "--token-file", token_file()};
    const std::vector<std::string> role =
        layers() ? std::vector<std::string>{"--target-devices", "cpu,worker:" + address,
                                            "--layer-times", "bytes"}  // loads nothing to measure
                 : std::vector<std::string>{"--expert-worker", address, "--expert-resident", "30%"};
    words.insert(words.end(), role.begin(), role.end());
    return words;
  }
  std::string state(const std::string& address) const {
    return "tessera_worker_state{worker=\"worker:" + address + "\"}";
  }
  const json body_ = greedy(some_ids(200), 40);
};
INSTANTIATE_TEST_SUITE_P(Roles, WorkerAtAnAddress,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "layers" : "experts") +
                                  (std::get<1>(info.param) ? "_tcp" : "_unix");
                         });

TEST_P(WorkerAtAnAddress, ServesOneServerAndKeepsItsWeightsForTheNext) {
  std::string expected;
  {
    const Served plain({"--parallel", "2", "--ctx", "2048"});
    expected = text_of(plain.complete(body_));
  }
  ListeningWorker worker(listen());
  {
    Served served(options(worker.address()));
    EXPECT_EQ(text_of(served.complete(body_)), expected);
    std::vector<std::string> second = {"plan", tiny_model()};
    const std::vector<std::string> more = options(worker.address());
    second.insert(second.end(), more.begin(), more.end());
    const Outcome refused = run_program({second});
    EXPECT_EQ(refused.code, layers() ? 1 : 0);  // experts are done without it
    EXPECT_NE(refused.err.find("busy"), std::string::npos) << refused.err;
    EXPECT_EQ(refused.out.find("(busy: ") == std::string::npos, layers()) << refused.out;
    if (!layers()) second.push_back("--expert-ipc-required");
    EXPECT_EQ(run_program({second}).code, 1);
    EXPECT_EQ(text_of(served.complete(body_)), expected) << "the first is served on";
    served.signal(SIGTERM);
    EXPECT_EQ(served.wait_for_end(), 0) << served.output();
  }
  EXPECT_EQ(worker.loads(), 1) << worker.output();
  {
    const Served again(options(worker.address()));
    EXPECT_EQ(text_of(again.complete(body_)), expected);
    EXPECT_EQ(worker.loads(), 1) << worker.output();
  }
  EXPECT_NE(worker.output().find("another client was refused (busy, "), std::string::npos)
      << worker.output();
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.wait(), 0) << worker.output();
  const std::string refused = "clients that were refused: ";
  const std::size_t at = worker.output().find(refused);
  ASSERT_NE(at, std::string::npos) << worker.output();
  EXPECT_GE(std::stoi(worker.output().substr(at + refused.size())), 2) << worker.output();
}

TEST_P(WorkerAtAnAddress, DiesAndComesBack) {
  std::optional<ListeningWorker> worker(listen());
  const std::string address = worker->address();
  const Served served(options(address));
  const std::string before = text_of(served.complete(body_));
  worker->signal(SIGKILL);
  worker->wait();
  worker.reset();
  if (layers()) {
    EXPECT_EQ(served.complete(body_).status, 503);
  } else {
    EXPECT_EQ(text_of(served.complete(body_)), before) << "the host steps in";
    EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
  }
  worker.emplace(address);
  ASSERT_TRUE(served.becomes(state(address), 1)) << served.output();
  EXPECT_EQ(text_of(served.complete(body_)), before);
  EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
  EXPECT_EQ(worker->loads(), 1) << worker->output();
}

// Nobody is there when the server starts; it is used when it comes.
TEST(ExpertWorkerAtAnAddress, MayComeLater) {
  const json body = greedy(some_ids(200), 40);
  std::string expected;
  {
    const Served plain({"--parallel", "2", "--ctx", "2048", "--expert-resident", "30%"});
    expected = text_of(plain.complete(body));
  }
  const std::string address = "unix:" + scratch_folder() + "/later.sock";
  const std::string worker = "{worker=\"worker:" + address + "\"}";
  std::vector<std::string> options = {"--parallel",        "2",   "--ctx",           "2048",
                                      "--expert-resident", "30%", "--expert-worker", address};
  const Served served(options);
  EXPECT_NE(served.output().find("no worker at " + address), std::string::npos) << served.output();
  EXPECT_EQ(text_of(served.complete(body)), expected);
  EXPECT_EQ(http_test::get(served.port(), "/health").status, 200);
  const ListeningWorker came(address);
  ASSERT_TRUE(served.becomes("tessera_worker_state" + worker, 1)) << served.output();
  EXPECT_EQ(text_of(served.complete(body)), expected);
  EXPECT_EQ(came.loads(), 1) << came.output();
  // Required, it must be there.
  const std::string nobody = "unix:" + scratch_folder() + "/nobody.sock";
  const Outcome refused =
      run_program({{"plan", tiny_model(), "--expert-worker", nobody, "--expert-ipc-required"}});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("no worker at " + nobody), std::string::npos) << refused.err;
}

// With --cpu-isa the same tokens are promised, whoever comes to the address and when.
TEST(ExpertWorkerAtAnAddress, IsRefusedWithOtherKernels) {
  if (cpu::detect_isa() == cpu::Isa::portable) GTEST_SKIP() << "this machine has no others";
  const json body = greedy(some_ids(200), 40);
  const std::string address = "unix:" + scratch_folder() + "/kernels.sock";
  const std::string label = "{worker=\"worker:" + address + "\"";
  const Served served({"--parallel", "2", "--ctx", "2048", "--expert-resident", "30%",
                       "--expert-worker", address, "--cpu-isa", "portable"});
  const std::string expected = text_of(served.complete(body));
  {
    const ListeningWorker other(address);
    EXPECT_TRUE(served.reaches("tessera_worker_refusals_total" + label + ",reason=\"isa\"}", 1))
        << served.output();
    expect_health_says(served, "start it with --cpu-isa portable too");
    EXPECT_EQ(text_of(served.complete(body)), expected);
    EXPECT_EQ(served.metric("tessera_moe_pairs_total{tier=\"worker\"}"), 0);
  }
  const ListeningWorker same(address, "portable");
  EXPECT_TRUE(served.becomes("tessera_worker_state" + label + "}", 1)) << served.output();
  // A job that comes late is the host's, so one answer may pass the worker by.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(text_of(served.complete(body)), expected);
    return served.metric("tessera_moe_pairs_total{tier=\"worker\"}") > 0;
  }));
}

// A server that hangs does not keep the worker from others for ever. The next one is told that it
// is busy, is served by its host meanwhile, and gets it.
TEST(ExpertWorkerAtAnAddress, IsNotHeldByAServerThatHangs) {
  ListeningWorker worker("unix:" + scratch_folder() + "/held.sock");
  const std::vector<std::string> options = {
      "--parallel",        "2",   "--ctx",           "2048",
      "--expert-resident", "30%", "--expert-worker", worker.address()};
  const std::string named = "{worker=\"worker:" + worker.address() + "\"";
  const Served first(options);
  ASSERT_TRUE(first.becomes("tessera_worker_state" + named + "}", 1)) << first.output();
  Served second(options);
  EXPECT_TRUE(second.reaches("tessera_worker_refusals_total" + named + ",reason=\"busy\"}", 1))
      << second.output();
  EXPECT_TRUE(second.says("it refuses (busy: another server")) << second.output();
  expect_health_says(second, "it refuses (busy: another server");
  first.signal(SIGSTOP);
  EXPECT_TRUE(worker.says("the client is given up")) << worker.output();
  EXPECT_TRUE(second.becomes("tessera_worker_state" + named + "}", 1)) << second.output();
  first.signal(SIGCONT);
  EXPECT_EQ(http_test::get(first.port(), "/health").status, 200);
}

// One on this machine takes of its memory, like one that is started here.
TEST(ExpertWorkerAtAnAddress, IsCountedAgainstThisMachinesMemory) {
  const ListeningWorker worker("unix:" + scratch_folder() + "/counted.sock");
  const ListeningWorker elsewhere("tcp:127.0.0.1:0");
  const auto planned = [&](const std::string& address) {
    const Outcome outcome =
        run_program({{"plan", tiny_model(), "--json", "--ctx", "2048", "--expert-resident", "30%",
                      "--token-file", token_file(), "--expert-worker", address}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("expert_workers").at(0);
  };
  const json here = planned(worker.address()), there = planned(elsewhere.address());
  EXPECT_GT(here.at("round_trip_us").get<double>(), 0.0);
  EXPECT_GT(there.at("round_trip_us").get<double>(), 0.0);
  EXPECT_TRUE(here.at("here").get<bool>());
  EXPECT_FALSE(there.at("here").get<bool>());
  EXPECT_GT(here.at("experts").get<int>(), 0);
  EXPECT_LT(here.at("budget_bytes").get<std::int64_t>(),
            there.at("budget_bytes").get<std::int64_t>() * 3 / 4);
}

TEST(WorkerToken, AWrongOneIsRefusedByBothEnds) {
  ListeningWorker worker("tcp:127.0.0.1:0");
  const std::string other = scratch_folder() + "/other_token";
  write_file(other, "another token of 32 characters..\n");
  const Outcome outcome = run_program({{"plan", tiny_model(), "--target-devices",
                                        "cpu,worker:" + worker.address(), "--token-file", other}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("authentication"), std::string::npos) << outcome.err;
  EXPECT_TRUE(worker.says("does not know the token was refused (authentication, 1 so far)"))
      << worker.output();
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.wait(), 0) << worker.output();
  EXPECT_TRUE(worker.says("clients that were refused: 1 authentication")) << worker.output();
}

}  // namespace
}  // namespace tessera::testing
