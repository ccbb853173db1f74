// Each command of the program, on the golden models and on a synthetic one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/cli/program.h"
#include "tests/golden_data.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

std::string golden(const std::string& name) {
  return std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name;
}

// One of each family, written once.
const std::string& synthetic(const std::string& family = "qwen35moe") {
  static std::map<std::string, std::string> made;
  std::string& path = made[family];
  if (path.empty()) {
    path = scratch_folder() + "/" + family + ".gguf";
    const Outcome outcome = run_program({{"synth", family, path}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  return path;
}

std::string join(std::span<const std::int32_t> ids) {
  std::string text;
  for (const std::int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

json run_json(std::vector<std::string> arguments) {
  const Outcome outcome = run_program({std::move(arguments)});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

TEST(Run, GreedyTokensAreTheReferenceAnswers) {
  const GoldenData answers = GoldenData::load(golden("qwen35moe.bin"));
  const json got =
      run_json({"run", golden("qwen35moe-bf16.gguf"), "--ids", join(answers.ints("p33_ids")), "-n",
                "4", "--temp", "0", "--ignore-eos", "--json"});
  const auto expected = answers.ints("greedy_from_p33");
  ASSERT_EQ(got["tokens"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got["tokens"][i], expected[i]) << i;
}

TEST(Run, JsonHasTheDocumentedFields) {
  const json got = run_json(
      {"run", synthetic(), "-p", "Hello", "-n", "5", "--seed", "3", "--ignore-eos", "--json"});
  EXPECT_EQ(got["tokens"].size(), 5u);
  EXPECT_TRUE(got["text"].is_string());
  EXPECT_EQ(got["stop"], "length");
  EXPECT_EQ(got["seed"], 3);
  EXPECT_GT(got["timings"]["prompt_tokens"], 1);
  EXPECT_EQ(got["timings"]["generated"], 5);
  EXPECT_GE(got["timings"]["prompt_s"], 0.0);
  EXPECT_GE(got["timings"]["generate_s"], 0.0);
  EXPECT_EQ(got["plan"]["architecture"], "qwen35moe");
}

TEST(Run, SameSeedSameAnswer) {
  const std::vector<std::string> call = {"run", synthetic(), "-p", "Hi",    "-n",
                                         "12",  "--seed",    "11", "--json"};
  EXPECT_EQ(run_json(call)["tokens"], run_json(call)["tokens"]);
}

TEST(Run, ChatsOverPipedLines) {
  const Outcome outcome =
      run_program({{"run", synthetic(), "-n", "3", "--log-level", "warn"}, "one\n/reset\ntwo\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(outcome.out.empty());
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, EveryFamilyAnswers) {
  for (const char* family : {"qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"}) {
    const Outcome outcome = run_program({{"run", synthetic(family), "-p", "Hi", "-n", "2"}});
    EXPECT_EQ(outcome.code, 0) << family << ": " << outcome.err;
  }
}

TEST(Logits, MatchTheReferenceInAnyChunks) {
  const GoldenData answers = GoldenData::load(golden("gemma4.bin"));
  const std::string out = scratch_folder() + "/logits.f32";
  std::string first;
  for (const char* chunk : {"256", "7"}) {
    const Outcome outcome =
        run_program({{"logits", golden("gemma4-bf16.gguf"), "--ids", join(answers.ints("p33_ids")),
                      "--out", out, "--prefill-chunk", chunk}});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string bytes = read_file(out);
    const std::span<const float> expected = answers.floats("p33_logits");
    ASSERT_EQ(bytes.size(), expected.size_bytes());
    std::vector<float> got(expected.size());
    std::memcpy(got.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 5e-2) << i;
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

TEST(Logits, LeaveNoFileBehindWhenTheyFail) {
  const std::string out = scratch_folder() + "/none.f32";
  const Outcome outcome =
      run_program({{"logits", golden("qwen3-bf16.gguf"), "--ids", "99999", "--out", out}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("token 99999"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_file(out), "");
}

TEST(Text, TokensThereAndBack) {
  const json got =
      json::parse(run_program({{"tokenize", synthetic(), "--text", "hello world", "--json"}}).out);
  EXPECT_EQ(got["count"], got["tokens"].size());
  const Outcome back = run_program(
      {{"detokenize", synthetic(), "--ids", join(got["tokens"].get<std::vector<std::int32_t>>())}});
  EXPECT_EQ(back.out, "hello world\n");
  const Outcome piped = run_program({{"tokenize", synthetic()}, "hello world"});
  EXPECT_EQ(piped.out, join(got["tokens"].get<std::vector<std::int32_t>>()) + "\n");
}

TEST(Text, TemplateReadsAListOrAnObject) {
  const std::string list = R"([{"role":"user","content":"Hi"}])";
  const Outcome a = run_program({{"template", synthetic()}, list});
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_NE(a.out.find("Hi"), std::string::npos);
  const std::string path = scratch_folder() + "/messages.json";
  write_file(path, R"({"messages":)" + list + "}");
  EXPECT_EQ(run_program({{"template", synthetic(), "--messages", path}}).out, a.out);
}

TEST(Inspect, ListsKeysAndTensors) {
  const json got = run_json({"inspect", golden("laguna-bf16.gguf"), "--json"});
  EXPECT_EQ(got["metadata"]["general.architecture"], "laguna");
  EXPECT_GT(got["tensors"].size(), 10u);
  const Outcome text = run_program({{"inspect", golden("laguna-bf16.gguf")}});
  EXPECT_NE(text.out.find("token_embd.weight"), std::string::npos);
}

TEST(Plan, TakesTheSameOptionsAsTheOthers) {
  const json got = run_json({"plan", synthetic(), "--ctx", "256", "--parallel", "3", "--kv-type",
                             "q8_0", "--threads", "1", "--json"});
  EXPECT_EQ(got["context"], 256);
  EXPECT_EQ(got["parallel"], 3);
  EXPECT_EQ(got["kv_type"], "q8_0");
  EXPECT_EQ(got["shards"][0]["threads"], 1);
}

TEST(Bench, ReportsEveryTestBesideTheMachine) {
  const json got = run_json({"bench", synthetic(), "-p", "16", "-n", "4", "-b", "1,2", "-d", "0,32",
                             "-r", "3", "--budget", "512MiB", "--json"});
  ASSERT_EQ(got.size(), 6u);
  EXPECT_EQ(got[0]["test"], "pp16");
  EXPECT_EQ(got[2]["test"], "tg4 x2");
  EXPECT_EQ(got[3]["depth"], 32);
  for (const json& test : got) {
    for (const char* part : {"min", "median", "max"}) EXPECT_GT(test["tokens_per_s"][part], 0.0);
    std::vector<double> runs = test["tokens_per_s"]["runs"];
    ASSERT_EQ(runs.size(), 3u);
    std::sort(runs.begin(), runs.end());
    EXPECT_EQ(test["tokens_per_s"]["min"], runs[0]);
    EXPECT_EQ(test["tokens_per_s"]["median"], runs[1]);
    EXPECT_EQ(test["tokens_per_s"]["max"], runs[2]);
    EXPECT_GT(test["bytes_per_token"], 0.0);
    EXPECT_GT(test["gb_per_s"], 0.0);
    EXPECT_GT(test["fraction_of_measured_bandwidth"], 0.0);
  }
}

// What the machine can do is measured before there is a model, in what will be its memory.
TEST(Bench, NeedsNoMoreMemoryThanThePlan) {
  const std::vector<std::string> options = {"--threads", "2", "--ctx", "64", "--json"};
  std::vector<std::string> plan = {"plan", synthetic()};
  std::vector<std::string> bench = {"bench", synthetic(), "-p", "16", "-n", "4", "-r", "1"};
  plan.insert(plan.end(), options.begin(), options.end());
  bench.insert(bench.end(), options.begin(), options.end());
  const Outcome ran = run_program({bench});
  ASSERT_EQ(ran.code, 0) << ran.err;
  // And the file, which the system may drop, and the program.
  constexpr double kMapped = 32 << 20;
  EXPECT_LT(ran.peak_bytes, run_json(plan)["total_bytes"].get<double>() + kMapped);
}

// The model that comes with Tessera is taken, and it is said.
TEST(Commands, NeedNoModel) {
  const std::vector<std::string> calls[] = {
      {"plan"},
      {"bench", "-p", "16", "-n", "0", "-r", "1"},
      {"tokenize", "--text", "Hi"},
      {"detokenize", "--ids", "1"},
      {"template"},
      {"logits", "--ids", "1", "--out", scratch_folder() + "/logits"},
  };
  for (const std::vector<std::string>& call : calls) {
    const Outcome outcome = run_program({call, R"([{"role":"user","content":"Hi"}])"});
    EXPECT_EQ(outcome.code, 0) << call[0] << ": " << outcome.err;
    EXPECT_NE(outcome.err.find("no model was named"), std::string::npos) << outcome.err;
  }
}

TEST(Serve, AnswersAndEndsOnSigterm) {
  ServerProcess server({"--port", "0"});
  ASSERT_TRUE(server.wait_for("Try: curl http://")) << server.output();
  EXPECT_NE(server.output().find("no model was named"), std::string::npos);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.output();
}

TEST(Serve, EndsOnCtrlC) {
  ServerProcess server({synthetic(), "--port", "0", "--drain", "30s"});
  ASSERT_TRUE(server.wait_for("Try: curl http://")) << server.output();
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(), 0) << server.output();
  EXPECT_NE(server.output().find("stopped"), std::string::npos);
}

TEST(Worker, EndsInOrderOnEitherSignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    ServerProcess worker({"--listen", "unix:" + scratch_folder() + "/ended.sock"}, "worker");
    ASSERT_TRUE(worker.wait_for("worker ready at")) << worker.output();
    worker.signal(signal);
    EXPECT_EQ(worker.wait(), 0) << worker.output();
  }
}

TEST(Output, AFullDeviceIsAFailure) {
  const Outcome outcome = run_program({.arguments = {"--help"}, .output = "/dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(outcome.err.starts_with("tessera: cannot write to standard output")) << outcome.err;
}

}  // namespace
}  // namespace tessera::testing
