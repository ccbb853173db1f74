// Layers on several devices, as options of the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

const std::string kTwo = "cpu:0,cpu:1";

TEST(PlacementOptions, MistakesAreCodeTwoBeforeAFileIsRead) {
  const std::pair<std::vector<std::string>, const char*> calls[] = {
      {{"--target-devices", "cpu:0,tpu"}, "--target-devices: 'tpu' is no device"},
      {{"--target-devices", "cpu:0,"}, "--target-devices: ''"},
      {{"--target-devices", "cpu:0,cpu:0"}, "twice"},
      {{"--target-devices", "cpu,cpu:0"}, "cpu is all cores"},
      {{"--target-layer-split", "1,1"}, "--target-devices"},
      {{"--target-devices", kTwo, "--target-layer-split", "1,2,3"}, "3 weights for 2 devices"},
      {{"--target-devices", kTwo, "--target-layer-split", "1,0"}, "'0': give numbers above 0"},
      {{"--target-devices", kTwo, "--target-layer-split", "1,nan"}, "'nan'"},
      {{"--target-devices", kTwo, "--budget", "1GiB"}, "say whose it is"},
      {{"--target-devices", kTwo, "--budget", "cpu:7=1GiB"}, "cpu:7 holds no layers"},
      {{"--target-devices", kTwo, "--budget", "cpu:0=1XB"}, "512MiB"},
      {{"--target-devices", kTwo, "--budget", "cpu:0=1MiB", "--budget", "cpu:0=2MiB"}, "has two"},
      {{"--budget", "0"}, "--budget: a budget is at least one byte"},
      {{"--budget", "0.5"}, "a budget is at least one byte"},
      {{"--target-devices", kTwo, "--budget", "cpu:0=0.9"}, "--budget cpu:0: a budget is at least"},
      {{"--spawn-worker", "experts", "--budget", "worker:0=0"}, "--budget worker:0: a budget"},
      {{"--target-devices", "cpu:0,cpu:1,cpu:2", "-t", "2"}, "--threads 2"},
      {{"--target-devices", "cpu,worker:tcp:127.0.0.1:9"}, "--target-devices tcp:127.0.0.1:9: a "},
      {{"--expert-worker", "tcp:127.0.0.1:9"}, "over tcp needs a token of at least 16 bytes"},
  };
  for (const auto& [options, part] : calls) {
    SCOPED_TRACE(part);
    std::vector<std::string> arguments = {"plan", missing_path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({arguments});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST(PlacementOptions, ThePlanShowsEveryShard) {
  const Outcome outcome =
      run_program({{"plan", kDenseModel, "--target-devices", kTwo, "--target-layer-split", "3,1",
                    "-t", "2", "--budget", "cpu:1=1GiB", "--json"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto plan = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(plan["shards"].size(), 2u);
  EXPECT_EQ(plan["shards"][0]["device"], "cpu:0");
  EXPECT_EQ(plan["shards"][0]["end_layer"], plan["shards"][1]["first_layer"]);
  EXPECT_GT(plan["shards"][0]["end_layer"], plan["layers"].get<int>() / 2);
  EXPECT_EQ(plan["shards"][1]["budget_bytes"], 1 << 30);
}

// Tables and sentences, whoever reads them.
TEST(PlacementOptions, ThePlanFitsATerminal) {
  const Outcome outcome =
      run_program({{"plan", TESSERA_SOURCE_DIR "/models/tessera-mini.gguf", "--target-devices",
                    kTwo, "-t", "2", "--expert-resident", "50%", "--budget", "cpu:1=1GiB"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_NE(outcome.out.find("prefill chunks of 256\n\n"), std::string::npos) << outcome.out;
}

TEST(PlacementOptions, ADrafterHasItsMemoryKeptFree) {
  const std::string models = TESSERA_SOURCE_DIR "/models/";
  const std::string drafter = models + "tessera-mini-dflash.gguf";
  const Outcome outcome =
      run_program({{"plan", models + "tessera-mini.gguf", "--draft", drafter, "--json"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto plan = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(plan["drafter"]["name"], "Tessera Mini drafter");
  EXPECT_EQ(plan["drafter"]["weight_bytes"], 2725376);
  EXPECT_EQ(plan["drafter"]["total_bytes"], plan["shards"][0]["drafter_bytes"]);
  const Outcome other = run_program({{"plan", kDenseModel, "--draft", drafter}});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("dflash.embedding_length: 256"), std::string::npos) << other.err;
}

TEST(PlacementOptions, WhatDoesNotFitSaysWho) {
  const Outcome outcome = run_program({{"plan", kDenseModel, "--target-devices", kTwo, "-t", "2",
                                        "--budget", "cpu:1=100KiB", "-c", "256"}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("cpu:1 lacks"), std::string::npos) << outcome.err;
}

TEST(PlacementOptions, TheAnswerIsTheSame) {
  const auto tokens = [](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run", kDenseModel, "--ids", "5,6,7",  "-n",
                                          "16",  "--temp",    "0",     "--json", "--ignore-eos"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({arguments});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["tokens"];
  };
  const auto plain = tokens({"-t", "1"});
  EXPECT_EQ(plain.size(), 16u);
  EXPECT_EQ(tokens({"--target-devices", kTwo, "-t", "2"}), plain);
  EXPECT_EQ(
      tokens({"--target-devices", "cpu:0,cpu:1,cpu:2", "--target-layer-split", "1,2,1", "-t", "3"}),
      plain);
}

}  // namespace
}  // namespace tessera::testing
