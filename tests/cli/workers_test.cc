// Workers as options of the program: each option is honoured on every topology, or refused at
// start.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

using Words = std::vector<std::string>;

const std::string kIds = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25";

TEST(WorkerUsage, MistakesAreCodeTwoBeforeAFileIsRead) {
  const std::pair<Words, const char*> calls[] = {
      {{"--spawn-worker", "layer"}, "the role is layers or experts"},
      {{"--spawn-worker", "threads=2"}, "the role is layers or experts"},
      {{"--spawn-worker", "layers,threads=0"}, "threads go from 1"},
      {{"--spawn-worker", "layers,threads"}, "lacks a value"},
      {{"--spawn-worker", "layers,device=tpu"}, "computes on cpu"},
      {{"--spawn-worker", "layers,budget=much"}, "give bytes"},
      {{"--spawn-worker", "layers,speed=3"}, "not known"},
      {{"--spawn-worker", "layers,threads=1,threads=2"}, "threads=2: this worker has that key"},
      {{"--spawn-worker", "layers,budget=1GiB", "--budget", "worker:0=2GiB"},
       "--budget: worker:0 has a budget in --spawn-worker already"},
      {{"--spawn-worker", "layers,bin=" + missing_path()}, "nobody_made_this"},
      {{"--spawn-worker", "experts,bin=/etc/passwd"}, "not an executable file"},
      {{"--spawn-worker", "layers", "--target-devices", "cpu"}, "does not name it"},
      {{"--target-devices", "cpu,worker:0"}, "needs a --spawn-worker layers"},
      {{"--target-devices", "cpu,worker:1", "--spawn-worker", "layers"}, "does not name it"},
      {{"--target-devices", "cpu,worker:0", "--spawn-worker", "experts"}, "needs a --spawn-worker"},
      {{"--target-devices", "cpu,worker:udp:x"}, "is no device"},
      {{"--target-devices", "cpu,worker:tcp:host"}, "tcp:host"},
      {{"--expert-worker", "here"}, "--expert-worker"},
      {{"--expert-worker", "unix:/a", "--expert-worker", "unix:/a"}, "unix:/a: it is named twice"},
      {{"--expert-worker", "tcp:h:7", "--target-devices", "cpu,worker:tcp:h:7"},
       "tcp:h:7: --target-devices gives this worker layers"},
      {{"--expert-worker", "unix:/a", "--expert-worker", "unix:/./a"},
       "unix:/./a: it is named twice (as unix:/a)"},
      {{"--expert-worker", "tcp:localhost:7", "--expert-worker", "tcp:127.0.0.1:7"},
       "tcp:127.0.0.1:7: it is named twice (as tcp:localhost:7)"},
      {{"--expert-worker", "tcp:127.0.0.1:7", "--target-devices", "cpu,worker:tcp:localhost:7"},
       "tcp:127.0.0.1:7: --target-devices gives this worker layers (as tcp:localhost:7)"},
      {{"--target-devices", "cpu,worker:unix:/a,worker:unix:/b/../a"},
       "--target-devices unix:/b/../a: it is named twice (as unix:/a)"},
      {{"--expert-ipc-required"}, "--expert-ipc-required: no worker of experts is named"},
      {{"--expert-ipc-required", "--spawn-worker", "layers"}, "no worker of experts is named"},
      {{"--worker-timeout", "0s"}, "--worker-timeout"},
      {{"--worker-transport", "pipe"}, "auto, shared or stream"},
      {{"--token-file", missing_path()}, "nobody_made_this"},
  };
  for (const auto& [options, part] : calls) {
    SCOPED_TRACE(part);
    Words words = {"plan", missing_path()};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = run_program({words});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST(WorkerUsage, WhatIsNoWorkerIsFoundBeforeWeightsAreRead) {
  for (const char* role : {"layers", "experts"}) {
    const Outcome outcome =
        run_program({{"plan", kMoeModel, "--spawn-worker", std::string(role) + ",bin=/bin/true"}});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find("worker:0: /bin/true does not answer 'worker --probe'"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("bin= is the path of a tessera program"), std::string::npos);
  }
  // What the worker says of itself is the error, and said once.
  const Outcome no_gpu =
      run_program({{"plan", kMoeModel, "--spawn-worker", "experts,device=cuda:99"}});
  EXPECT_EQ(no_gpu.code, 1);
  EXPECT_NE(no_gpu.err.find("tessera: worker:0: cuda:99: "), std::string::npos) << no_gpu.err;
  EXPECT_EQ(no_gpu.err.find("[worker probe]"), std::string::npos) << no_gpu.err;
  const Outcome nobody =
      run_program({{"plan", kMoeModel, "--target-devices", "cpu,worker:unix:" + missing_path()}});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_NE(nobody.err.find("no worker at"), std::string::npos) << nobody.err;
}

// A name may be known later, like a worker that is not there yet; layers and required workers are
// needed now.
TEST(WorkerUsage, AHostThatNobodyKnowsMayComeWithItsExperts) {
  write_file(scratch_folder() + "/token", "a token of this test alone\n");
  const Words token = {"plan", kMoeModel, "--token-file", scratch_folder() + "/token"};
  const auto plan = [&](Words words) {
    words.insert(words.begin(), token.begin(), token.end());
    return run_program({words});
  };
  const std::string nowhere = "tcp:no-such-host.invalid:7";
  const Outcome later = plan({"--expert-worker", nowhere});
  EXPECT_EQ(later.code, 0) << later.err;
  EXPECT_NE(later.err.find("name is not known"), std::string::npos) << later.err;
  EXPECT_NE(later.err.find("the host computes its experts until it comes"), std::string::npos);
  EXPECT_EQ(plan({"--expert-worker", nowhere, "--expert-ipc-required"}).code, 1);
  EXPECT_EQ(plan({"--target-devices", "cpu,worker:" + nowhere}).code, 1);
}

// Experts of layers that a worker has are computed there.
TEST(WorkerUsage, AnExpertWorkerThatCanBeOfNoUseIsRefused) {
  const Outcome elsewhere =
      run_program({{"plan", kMoeModel, "--spawn-worker", "layers", "--spawn-worker", "experts",
                    "--target-devices", "worker:0"}});
  EXPECT_EQ(elsewhere.code, 1);
  EXPECT_NE(elsewhere.err.find("worker:1 is to compute experts of layers in this process"),
            std::string::npos)
      << elsewhere.err;
  const Outcome dense =
      run_program({{"plan", TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf",
                    "--spawn-worker", "experts"}});
  EXPECT_EQ(dense.code, 1);
  EXPECT_NE(dense.err.find("--spawn-worker experts: the model has no routed experts"),
            std::string::npos)
      << dense.err;
}

// All experts of this model have their place with their layers unless they are sent away.
TEST(WorkerUsage, AnExpertWorkerTakesCoresOnlyForExperts) {
  const auto plan = [](Words options) {
    Words words = {"plan", kMoeModel, "--json"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = run_program({words});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const int cores = plan({})["shards"][0]["threads"];
  const auto idle = plan({"--spawn-worker", "experts"});
  EXPECT_EQ(idle["shards"][0]["threads"], cores);
  EXPECT_EQ(idle["expert_workers"][0]["threads"], 0);
  const auto busy = plan({"--spawn-worker", "experts", "--expert-resident", "50%"});
  EXPECT_EQ(busy["shards"][0]["threads"], std::max(1, cores - 1));
  EXPECT_EQ(busy["expert_workers"][0]["threads"], 1);
}

// By hand a worker has no parent to speak to, and says what to do.
TEST(WorkerUsage, AloneItAsksForAnAddress) {
  const Outcome outcome = run_program({{"worker", kMoeModel}});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--listen"), std::string::npos) << outcome.err;
  const Outcome gpu =
      run_program({{"worker", kMoeModel, "--device", "cuda:99", "--listen", "unix:/x"}});
  EXPECT_EQ(gpu.code, 1);
  EXPECT_NE(gpu.err.find("cuda"), std::string::npos) << gpu.err;
  const Outcome open = run_program({{"worker", kMoeModel, "--listen", "tcp:127.0.0.1:0"}});
  EXPECT_EQ(open.code, 2);
  EXPECT_NE(open.err.find("token"), std::string::npos) << open.err;
  EXPECT_EQ(run_program({{"worker", kMoeModel, "--listen", "foo:1"}}).code, 2);
  const Outcome team =
      run_program({{"worker", kMoeModel, "--device", "cpu:1000", "--listen", "unix:/x"}});
  EXPECT_EQ(team.code, 2);
  EXPECT_EQ(team.err.find("tessera: --device: cpu:1000 makes 1001 teams"), 0u) << team.err;
  const Outcome spawned =
      run_program({{"plan", kMoeModel, "--spawn-worker", "layers,device=cpu:999"}});
  EXPECT_EQ(spawned.code, 2);
  EXPECT_EQ(spawned.err.find("tessera: --spawn-worker device=cpu:999: cpu:999 makes"), 0u)
      << spawned.err;
  for (const Words& options : {Words{"--device", "foo"}, Words{"--device", "cpu,cpu:0"},
                               Words{"--device", "worker:0"}, Words{"--budget", "cuda:0=1GiB"}}) {
    Words words = {"worker", kMoeModel, "--listen", "unix:/x"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome wrong = run_program({words});
    EXPECT_EQ(wrong.code, 2);
    EXPECT_NE(wrong.err.find(fmt::format("{} {}: ", options[0], options[1])), std::string::npos)
        << wrong.err;
    EXPECT_EQ(wrong.err.find("--target-devices"), std::string::npos) << "which a server has";
  }
}

std::vector<float> logits(Words options, const Words& environment = {}) {
  const std::string out = scratch_folder() + "/logits.f32";
  Words words = {"logits", kMoeModel, "--ids", kIds, "--out", out, "--log-level", "warn"};
  words.insert(words.end(), options.begin(), options.end());
  const Outcome outcome = run_program({.arguments = words, .environment = environment});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string bytes = read_file(out);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

Words and_words(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kOptions[] = {
    {},
    {"--kv-type", "f16"},
    {"--kv-type", "q8_0"},
    {"--delta-form", "chunked"},
    {"--cpu-isa", "portable"},
    {"--prefill-chunk", "7"},
    {"--ctx", "100"},
    {"--parallel", "3"},
    {"--threads", "3"},
};

TEST(WorkerTopologies, LayersHonourEveryOption) {
  const Words topologies[] = {
      {"--target-devices", "cpu:0,cpu:1"},
      {"--spawn-worker", "layers"},
      {"--spawn-worker", "layers,threads=2", "--worker-transport", "stream"},
      {"--spawn-worker", "layers,budget=1GiB", "--target-devices", "worker:0"},
      {"--spawn-worker", "layers", "--spawn-worker", "layers", "--target-devices",
       "worker:1,cpu,worker:0", "--target-layer-split", "1,2,1", "--budget", "worker:0=1GiB"},
  };
  for (const Words& option : kOptions) {
    const std::vector<float> plain = logits(option);
    ASSERT_FALSE(plain.empty());
    for (const Words& topology : topologies) {
      SCOPED_TRACE(topology[1] + (option.empty() ? "" : ", " + option[0] + " " + option[1]));
      EXPECT_TRUE(logits(and_words(option, topology)) == plain);
    }
  }
}

TEST(WorkerTopologies, ExpertsHonourEveryOption) {
  const Words topologies[] = {
      {"--spawn-worker", "experts", "--expert-resident", "40%"},
      {"--spawn-worker", "experts", "--expert-resident", "0%", "--expert-ipc-mode", "stream",
       "--expert-ipc-transport", "stream", "--expert-ipc-required"},
      {"--spawn-worker", "experts", "--spawn-worker", "experts", "--expert-resident", "10%",
       "--expert-ipc-batch-capacity", "5"},
      {"--spawn-worker", "layers", "--spawn-worker", "experts", "--expert-resident", "30%"},
  };
  for (const Words& option : kOptions) {
    const std::vector<float> plain = logits(option);
    for (const Words& topology : topologies) {
      SCOPED_TRACE(topology[3] + (option.empty() ? "" : ", " + option[0] + " " + option[1]));
      const std::vector<float> got = logits(and_words(option, topology));
      ASSERT_EQ(got.size(), plain.size());
      float worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(got[i] - plain[i]));
      EXPECT_LT(worst, 1e-3f);
    }
  }
}

TEST(WorkerTopologies, TheEnvironmentSaysTheSame) {
  const std::vector<float> plain = logits({});
  EXPECT_TRUE(logits({}, {"TESSERA_WORKER_SPAWN=layers,threads=1,layers",
                          "TESSERA_WORKER_TRANSPORT=stream"}) == plain);
  const Outcome plan = run_program({.arguments = {"plan", kMoeModel, "--json"},
                                    .environment = {"TESSERA_WORKER_SPAWN=layers,layers"}});
  EXPECT_NE(plan.out.find("worker:1"), std::string::npos) << plan.out;
  const Outcome alias = run_program({.arguments = {"plan", kMoeModel},
                                     .environment = {"DFLASH_MOE_EXPERT_COMPUTE_IPC_BIN=/etc"}});
  EXPECT_EQ(alias.code, 2);
  EXPECT_NE(alias.err.find("not an executable file"), std::string::npos) << alias.err;
  // It is whom a worker that is asked for is started as, and no further worker.
  const Outcome one = run_program({.arguments = {"plan", kMoeModel, "--spawn-worker", "experts"},
                                   .environment = {"DFLASH_MOE_EXPERT_COMPUTE_IPC_BIN=/etc"}});
  EXPECT_NE(one.err.find("not an executable file"), std::string::npos) << one.err;
  const Outcome own =
      run_program({.arguments = {"plan", kMoeModel, "--json", "--expert-resident", "0%",
                                 "--spawn-worker", "experts,bin=" TESSERA_PROGRAM},
                   .environment = {"DFLASH_MOE_EXPERT_COMPUTE_IPC_BIN=/etc"}});
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(nlohmann::json::parse(own.out)["expert_workers"].size(), 1u);
}

// What it has is not this machine's, of which bench says what it can do.
TEST(WorkersElsewhere, AreNotCountedAsThisMachineByBench) {
  const std::string token = scratch_folder() + "/bench_token";
  write_file(token, "a token of this test alone\n");
  ServerProcess worker({kMoeModel, "--listen", "tcp:127.0.0.1:0", "--token-file", token,
                        "--threads", "3", "--budget", "1GiB"},
                       "worker");
  const std::string ready = "worker ready at ";
  ASSERT_TRUE(worker.wait_for(ready + "tcp:")) << worker.output();
  std::string address = worker.output();
  address.erase(0, address.find(ready) + ready.size());
  address.erase(address.find_first_of(" \n"));
  Words bench = {"bench", kMoeModel,   "-p", "16",    "-n",  "4",      "-r",
                 "1",     "--threads", "1",  "--ctx", "256", "--json", "--layer-times",
                 "bytes"};
  const auto run = [&](const Words& options) {
    Words words = bench;
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = run_program({words});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at(0);
  };
  const auto away = run({"--target-devices", "cpu,worker:" + address, "--token-file", token});
  EXPECT_EQ(away["machine"]["threads"], 1);
  EXPECT_FALSE(away.contains("fraction_of_measured_bandwidth")) << away;
  const auto here = run({"--spawn-worker", "layers,threads=2"});
  EXPECT_EQ(here["machine"]["threads"], 3);
  EXPECT_TRUE(here.contains("fraction_of_measured_bandwidth")) << here;
}

}  // namespace
}  // namespace tessera::testing
