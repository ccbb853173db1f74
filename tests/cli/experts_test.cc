// Experts that leave their device, as options of the program.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

const std::string kOther = TESSERA_SOURCE_DIR "/tests/data/golden/laguna-bf16.gguf";
const std::string kBundled = TESSERA_SOURCE_DIR "/models/tessera-mini.gguf";

TEST(ExpertOptions, MistakesAreCodeTwoBeforeAFileIsRead) {
  const std::pair<std::vector<std::string>, const char*> calls[] = {
      {{"--expert-resident", "101"}, "--expert-resident 101: give auto, all, or percent"},
      {{"--expert-resident", "half"}, "--expert-resident half"},
      {{"--expert-resident", "-1%"}, "--expert-resident -1%"},
      {{"--expert-ipc-mode", "fast"}, "give auto, batched or stream"},
      {{"--expert-ipc-dtype", "f64"}, "give f32, f16, bf16 or int16"},
      {{"--expert-ipc-transport", "pipe"}, "give auto, shared or stream"},
      {{"--expert-ipc-batch-capacity", "0"}, "from 1 to 4096"},
      {{"--expert-cache", "-1"}, "from 0 to"},
      {{"--expert-cache", "65537"}, "from 0 to 65536, or bytes"},
      {{"--expert-cache", "2GiBs"}, "--expert-cache 2GiBs: give places"},
  };
  for (const auto& [options, part] : calls) {
    SCOPED_TRACE(part);
    std::vector<std::string> arguments = {"plan", missing_path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({arguments});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST(ExpertOptions, TheOtherNamesInTheEnvironmentAreCheckedAlike) {
  const std::pair<const char*, const char*> wrong[] = {
      {"DFLASH_MOE_EXPERT_COMPUTE_IPC_MODE=fast", "give auto, batched or stream"},
      {"DFLASH_MOE_EXPERT_COMPUTE_IPC_TRANSPORT=pipe", "give auto, shared or stream"},
      {"DFLASH_MOE_EXPERT_COMPUTE_IPC_DTYPE=f64", "give f32, f16, bf16 or int16"},
      {"DFLASH_MOE_EXPERT_COMPUTE_IPC_BATCH_CAPACITY=12x", "from 1 to 4096"},
      {"DFLASH_MOE_EXPERT_COMPUTE_IPC_REQUIRED=maybe", "give true or false"},
  };
  for (const auto& [variable, part] : wrong) {
    const Outcome outcome =
        run_program({.arguments = {"plan", kMoeModel}, .environment = {variable}});
    EXPECT_EQ(outcome.code, 2);
    const std::string text(variable);
    EXPECT_NE(outcome.err.find(text.substr(0, text.find('='))), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  const Outcome right = run_program(
      {.arguments = {"plan", kMoeModel, "--expert-ipc-dtype", "bf16", "--print-config"},
       .environment = {
           "DFLASH_MOE_EXPERT_COMPUTE_IPC_REQUIRED=1", "DFLASH_MOE_EXPERT_COMPUTE_IPC_MODE=stream",
           "TESSERA_EXPERTS_IPC_MODE=batched", "DFLASH_MOE_EXPERT_COMPUTE_IPC_DTYPE=f16"}});
  ASSERT_EQ(right.code, 0) << right.err;
  EXPECT_NE(right.out.find("experts.ipc_required = true"), std::string::npos);
  EXPECT_NE(right.out.find("experts.ipc_mode = \"batched\""), std::string::npos);
  EXPECT_NE(right.out.find("experts.ipc_dtype = \"bf16\""), std::string::npos);
}

TEST(ExpertOptions, ThePlanSaysWhereExpertsAre) {
  // Where nothing was measured.
  const std::vector<std::string> environment = {"XDG_CACHE_HOME=" + scratch_folder() + "/empty"};
  const auto plan = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"plan", kMoeModel, "-c", "256"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({.arguments = arguments, .environment = environment});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const auto whole = nlohmann::json::parse(plan({"--json"}))["shards"][0];
  const auto half = nlohmann::json::parse(plan({"--expert-resident", "50%", "--json"}));
  const auto part = half["shards"][0];
  EXPECT_EQ(whole["experts_host"], 0);
  EXPECT_EQ(part["experts_resident"].get<int>() + part["experts_host"].get<int>(),
            whole["experts_resident"].get<int>());
  EXPECT_LT(part["weight_bytes"].get<int>(), whole["weight_bytes"].get<int>());
  EXPECT_EQ(half["predicted"]["measured"], false);
  const auto weights = [&](const std::string& cache) {
    const auto json = nlohmann::json::parse(
        plan({"--expert-resident", "50%", "--expert-cache", cache, "--json"}));
    return json["shards"][0]["weight_bytes"].get<std::int64_t>();
  };
  const std::int64_t bare = weights("0"), places = weights("1"), bytes = weights("100KiB");
  EXPECT_GT(places, bare);
  EXPECT_GT(bytes, bare);
  EXPECT_LE(bytes, bare + (100 << 10));
  const std::string table = plan({"--expert-resident", "50%"});
  EXPECT_NE(table.find(" host "), std::string::npos) << table;
  EXPECT_NE(table.find("Generation: at most "), std::string::npos) << table;
}

// Where experts leave, and once.
TEST(ExpertOptions, WhatTheyCostIsMeasuredAndKept) {
  const std::string cache = scratch_folder() + "/costs";
  const auto plan = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"plan", kMoeModel, "-c", "256", "--json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome =
        run_program({.arguments = arguments, .environment = {"XDG_CACHE_HOME=" + cache}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["expert_costs"];
  };
  const auto all_measured = [](const nlohmann::json& one) {
    return one["call_measured"].get<bool>() && one["speed_measured"].get<bool>();
  };
  EXPECT_TRUE(plan({}).empty());
  EXPECT_EQ(read_file(cache + "/tessera/machine.json").find("experts_of_host"), std::string::npos)
      << "measured for nothing";
  const nlohmann::json host = plan({"--expert-resident", "50%"});
  ASSERT_EQ(host.size(), 1u);
  EXPECT_EQ(host[0]["executor"], "host");
  EXPECT_TRUE(all_measured(host[0])) << host;
  EXPECT_EQ(plan({"--expert-resident", "50%"}), host);
  const nlohmann::json both = plan({"--expert-resident", "50%", "--spawn-worker", "experts"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["executor"], "worker:0");
  for (const nlohmann::json& one : both) EXPECT_TRUE(all_measured(one)) << one;
  // One that does not answer is taken to be as the host.
  const nlohmann::json nobody =
      plan({"--expert-resident", "50%", "--expert-worker", "unix:" + missing_path()});
  ASSERT_EQ(nobody.size(), 2u);
  EXPECT_FALSE(nobody[0]["call_measured"].get<bool>());
  EXPECT_FALSE(nobody[0]["speed_measured"].get<bool>());
  EXPECT_EQ(nobody[0]["bytes_per_s"], nobody[1]["bytes_per_s"]);
}

TEST(ExpertOptions, AnswersAreTheSameWithExpertsAway) {
  const auto answer = [](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run",    kBundled, "-p",     "What is 12 + 30?",
                                          "--temp", "0",      "-n",     "24",
                                          "-c",     "256",    "--json", "--ignore-eos"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({arguments});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto plain = answer({});
  EXPECT_FALSE(plain["timings"].contains("experts"));
  const auto part = answer({"--expert-resident", "40%"});
  EXPECT_EQ(part["text"], plain["text"]);
  const auto use = part["timings"]["experts"];
  EXPECT_GT(use["pairs"]["resident"], 0);
  EXPECT_GT(use["pairs"]["host"], 0);
  EXPECT_EQ(use["pairs"]["worker"], 0);
  // 8 layers of 4 experts a row, of the prompt and of all generated tokens but the last.
  const int rows = part["timings"]["prompt_tokens"].get<int>() + 23;
  EXPECT_EQ(use["pairs"]["resident"].get<int>() + use["pairs"]["host"].get<int>(), rows * 32);
  EXPECT_GT(use["wait_ms"]["host"], 0.0);
  EXPECT_EQ(answer({"--expert-resident", "0", "--expert-cache", "3"})["text"], plain["text"]);
}

TEST(ExpertOptions, AProfileIsMadeReadAndCheckedForItsModel) {
  const std::string text = scratch_folder() + "/sample.txt";
  const std::string profile = scratch_folder() + "/sample.spark.csv";
  write_file(text, "Rivers carry water from the hills to the sea. One, two, three, four.");
  const Outcome made =
      run_program({{"calibrate", kBundled, "--text", text, "-o", profile, "-c", "256"}});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(read_file(profile).find("# hotness table: n_layer=8 n_expert=16"), std::string::npos);
  const Outcome used = run_program({{"plan", kBundled, "-c", "256", "--expert-resident", "25",
                                     "--expert-profile", profile, "--json"}});
  ASSERT_EQ(used.code, 0) << used.err;
  EXPECT_LT(nlohmann::json::parse(used.out)["shards"][0]["experts_away_share"], 0.75);
  const Outcome other = run_program({{"plan", kOther, "-c", "256", "--expert-profile", profile}});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find(profile), std::string::npos) << other.err;
  // serve begins a profile that is not there; plan shows how, and writes nothing.
  const std::vector<std::string> first = {"plan", kMoeModel, "--expert-resident", "50", "--json"};
  const Outcome preview = run_program({{"plan", kMoeModel, "--expert-resident", "50", "--json",
                                        "--expert-profile", missing_path()}});
  EXPECT_EQ(preview.code, 0) << preview.err;
  EXPECT_NE(preview.err.find(missing_path() + " is not there yet: serve begins it"),
            std::string::npos)
      << preview.err;
  EXPECT_FALSE(std::filesystem::exists(missing_path()));
  const auto away = [](const Outcome& plan) {
    return nlohmann::json::parse(plan.out)["shards"][0]["experts_away"];
  };
  EXPECT_EQ(away(preview), away(run_program({first})));
  const Outcome missing =
      run_program({{"run", kMoeModel, "-p", "a", "-n", "1", "--expert-profile", missing_path()}});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("there is no such profile"), std::string::npos) << missing.err;
  const Outcome unplanned =
      run_program({{"plan", kMoeModel, "--expert-profile", missing_path() + "/profile.csv"}});
  EXPECT_EQ(unplanned.code, 1);
  EXPECT_NE(unplanned.err.find("there is no folder"), std::string::npos) << unplanned.err;
  const Outcome nowhere = run_program(
      {{"serve", kMoeModel, "--port", "0", "--expert-profile", missing_path() + "/profile.csv"}});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("there is no folder"), std::string::npos) << nowhere.err;
  // Layers in a worker count as those here do.
  const std::string split = scratch_folder() + "/split.spark.csv";
  const Outcome apart =
      run_program({{"calibrate", kBundled, "--text", text, "-o", split, "-c", "256",
                    "--spawn-worker", "layers", "--target-devices", "cpu,worker:0"}});
  ASSERT_EQ(apart.code, 0) << apart.err;
  EXPECT_EQ(read_file(split), read_file(profile));
  const Outcome no_text = run_program({{"calibrate", kBundled}});
  EXPECT_EQ(no_text.code, 2);
  EXPECT_NE(no_text.err.find("--text"), std::string::npos) << no_text.err;
  const Outcome binary = run_program({{"calibrate", kBundled, "--text", kBundled}});
  EXPECT_EQ(binary.code, 1);
  EXPECT_NE(binary.err.find("this is no text"), std::string::npos) << binary.err;
}

}  // namespace
}  // namespace tessera::testing
