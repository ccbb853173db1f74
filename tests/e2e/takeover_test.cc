// Layers of a worker that does not come back, on another device: /props and the table that is
// printed say who has them, and say so again when the worker is there.
#include <csignal>
#include <optional>

#include "tests/e2e/served_model.h"
#include "tests/send_signal.h"

namespace tessera::testing {
namespace {

json plan_of(const Served& served) {
  return json::parse(http_test::get(served.port(), "/props").body).at("plan");
}

bool owner_becomes(const Served& served, const json& owner) {
  return eventually([&] { return plan_of(served).at("shards").at(1).at("owner") == owner; });
}

std::string answer(const Served& served) {
  const Reply reply = served.complete(greedy(some_ids(100), 8));
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.status == 200 ? reply.json()["choices"][0]["text"].get<std::string>() : "";
}

std::vector<std::string> with_layers_at(const std::string& worker) {
  return {"--parallel",           "2",  "--ctx", "2048", "--target-devices", "cpu," + worker,
          "--target-layer-split", "3,1"};
}

TEST(Takeover, PropsSayWhoHasTheLayersOfASpawnedWorker) {
  std::vector<std::string> options = with_layers_at("worker:0");
  options.insert(options.end(), {"--spawn-worker", "layers,threads=1"});
  Served served(options);
  const json planned = plan_of(served);
  EXPECT_EQ(planned.at("shards").at(0).at("owner"), "cpu");
  EXPECT_EQ(planned.at("shards").at(1).at("owner"), "worker:0");
  const std::string before = answer(served);
  // As often as it is started again, and once more.
  for (int death = 0; death <= 3; ++death) {
    EXPECT_TRUE(owner_becomes(served, "worker:0")) << served.output();
    EXPECT_EQ(served.output().find("cpu for worker:0"), std::string::npos) << served.output();
    const std::vector<int> children = served.children();
    ASSERT_EQ(children.size(), 1u);
    send_signal(children.front(), SIGKILL);
    // Nobody has them until it is started again, at the end hardly for long enough to be seen.
    if (death < 3) {
      EXPECT_TRUE(owner_becomes(served, nullptr)) << served.output();
    }
  }
  ASSERT_TRUE(owner_becomes(served, "cpu")) << served.output();
  EXPECT_TRUE(served.says("cpu for worker:0"));
  EXPECT_EQ(answer(served), before);
  const json now = plan_of(served);
  const json& layers = now.at("shards").at(1);
  EXPECT_EQ(layers.at("device"), "worker:0");
  EXPECT_EQ(layers.at("remote"), false);
  EXPECT_EQ(layers.at("first_layer"), planned.at("shards").at(1).at("first_layer"));
  EXPECT_EQ(
      now.at("total_bytes").get<std::int64_t>(),
      planned.at("total_bytes").get<std::int64_t>() + layers.at("total_bytes").get<std::int64_t>());
}

// It has them back from the first request that finds no other running.
TEST(Takeover, PropsSayWhenAWorkerAtAnAddressHasItsLayersBack) {
  const std::string address = "unix:" + scratch_folder() + "/takeover.sock";
  const auto listening = [&](std::optional<ServerProcess>& worker) {
    worker.emplace(std::vector<std::string>{tiny_model(), "--listen", address, "--threads", "1"},
                   "worker");
    EXPECT_TRUE(worker->wait_for("worker ready at")) << worker->output();
  };
  std::optional<ServerProcess> worker;
  listening(worker);
  Served served(with_layers_at("worker:" + address));
  const json planned = plan_of(served);
  const std::string before = answer(served);
  worker.reset();
  ASSERT_TRUE(owner_becomes(served, "cpu")) << served.output();
  EXPECT_TRUE(served.says("cpu for worker:" + address));
  EXPECT_EQ(answer(served), before);
  listening(worker);
  EXPECT_TRUE(served.becomes("tessera_worker_state{worker=\"worker:" + address + "\"}", 1));
  EXPECT_EQ(plan_of(served).at("shards").at(1).at("owner"), "cpu");
  EXPECT_EQ(answer(served), before);
  EXPECT_EQ(plan_of(served), planned);
}

}  // namespace
}  // namespace tessera::testing
