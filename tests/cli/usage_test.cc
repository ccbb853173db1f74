// Wrong usage, and where values come from.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

void expect_one_line(const Outcome& outcome, int code, const std::string& part) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("tessera: ")) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(Usage, EachMistakeIsOneLine) {
  const std::pair<std::vector<std::string>, const char*> calls[] = {
      {{}, "give a command"},
      {{"srve"}, "did you mean serve?"},
      {{"run", "--contxt", "3"}, "--contxt is no option of 'tessera run'"},
      {{"run", "--ctxx", "3"}, "did you mean --ctx?"},
      {{"serve", "--draft", "x"}, "--draft is no option of 'tessera serve', but of plan"},
      {{"serve", "-n", "3"}, "-n is no option of 'tessera serve', but of run, bench"},
      {{"run", "-c", "many"}, "-c many: give a whole number from 0 to 16777216"},
      {{"run", "-p"}, "-p needs a value"},
      {{"serve", "--port", "70000"}, "--port 70000: give a whole number from 0 to 65535"},
      {{"plan", "x", "--kv-type", "f15"}, "give auto, f16, f32 or q8_0"},
      {{"plan"}, "usage: tessera plan MODEL"},
      {{"plan", "a", "b"}, "'b' is one argument too many"},
      {{"run", "-p", "a", "--ids", "1"}, "either -p or --ids"},
      {{"run", "--json"}, "--json needs a prompt"},
      {{"run", "--ids", "1,x"}, "--ids: 'x'"},
      {{"logits", "x", "--ids", "1"}, "--out"},
      {{"logits", "x", "--out", "y"}, "--ids or --ids-file"},
      {{"synth", "qwen", "x"}, "'qwen' is none of the families"},
      {{"bench", "x", "-p", "0", "-n", "0"}, "nothing to measure"},
      {{"plan", "x", "--budget", "12XB"}, "512MiB"},
  };
  for (const auto& [arguments, part] : calls) {
    SCOPED_TRACE(part);
    expect_one_line(run_program({arguments}), 2, part);
  }
}

TEST(Usage, WhatFailsAtRunTimeIsCodeOne) {
  expect_one_line(run_program({{"plan", "/nonexistent.gguf"}}), 1, "/nonexistent.gguf");
  const std::string path = scratch_folder() + "/text.gguf";
  write_file(path, "no model");
  expect_one_line(run_program({{"inspect", path}}), 1, "not a GGUF file");
}

TEST(Usage, HelpFitsAScreenAndNamesEveryCommand) {
  const std::string overview = run_program({{"--help"}}).out;
  for (const char* command : {"serve", "run", "logits", "tokenize", "detokenize", "template",
                              "inspect", "plan", "bench", "synth"}) {
    EXPECT_NE(overview.find(command), std::string::npos) << command;
    const Outcome help = run_program({{command, "--help"}});
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find("Example: tessera "), std::string::npos);
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_TRUE(run_program({{"--version"}}).out.starts_with("tessera "));
}

TEST(Config, EachSourceWinsOverTheNext) {
  const std::string path = scratch_folder() + "/c.toml";
  write_file(path, "[server]\nport = 1111\nhost = \"10.0.0.1\"\nmax_queue = 5\n[kv]\nctx = 99\n");
  const Outcome outcome = run_program(
      {{"serve", "--config", path, "--port", "3333", "--print-config"},
       "",
       {"TESSERA_SERVER_PORT=2222", "TESSERA_SERVER_HOST=10.0.0.2", "TESSERA_KV_TYPE=f32"}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto line = [&](const std::string& key) {
    const std::size_t at = outcome.out.find(key + " = ");
    return outcome.out.substr(at, outcome.out.find('\n', at) - at);
  };
  EXPECT_NE(line("server.port").find("3333"), std::string::npos);
  EXPECT_NE(line("server.port").find("# flag --port"), std::string::npos);
  EXPECT_NE(line("server.host").find("10.0.0.2"), std::string::npos);
  EXPECT_NE(line("server.host").find("# environment TESSERA_SERVER_HOST"), std::string::npos);
  EXPECT_NE(line("kv.type").find("\"f32\""), std::string::npos);
  EXPECT_NE(line("kv.ctx").find("# file " + path + ":6"), std::string::npos) << line("kv.ctx");
  EXPECT_NE(line("server.max_queue").find("5 "), std::string::npos);
  EXPECT_NE(line("server.drain").find("# default"), std::string::npos);
}

TEST(Config, WhatIsPrintedCanBeReadBack) {
  const std::string path = scratch_folder() + "/printed.toml";
  const std::string printed =
      run_program({{"serve", "--drain", "250ms", "--cors-origin", "http://a", "--print-config"}})
          .out;
  write_file(path, printed);
  const Outcome again = run_program({{"serve", "--config", path, "--print-config"}});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("server.drain = \"0.25s\""), std::string::npos) << again.out;
  EXPECT_NE(again.out.find("[\"http://a\"]"), std::string::npos) << again.out;
}

TEST(Config, KeysAreNotShown) {
  const Outcome outcome = run_program({{"serve", "--api-key", "s3cret", "--print-config"}});
  EXPECT_EQ(outcome.out.find("s3cret"), std::string::npos);
  EXPECT_NE(outcome.out.find("flag --api-key"), std::string::npos);
}

TEST(Config, MistakesInFilesAndVariablesNameTheirPlace) {
  const std::string path = scratch_folder() + "/bad.toml";
  const std::pair<const char*, const char*> files[] = {
      {"[server]\nprt = 1\n", ":2: server.prt is no key, did you mean server.port?"},
      {"[server]\nport = 70000\n", ":2: server.port = 70000: give a whole number"},
      {"[run]\nprompt = \"x\"\n", "belongs on the command line"},
      {"[server\n", ":1: "},
      {"[server]\nport = [1, 2]\n", "give one value"},
  };
  for (const auto& [text, part] : files) {
    write_file(path, text);
    expect_one_line(run_program({{"plan", "x", "--config", path}}), 2, part);
  }
  expect_one_line(run_program({{"plan", "x"}, "", {"TESSERA_KV_CXT=1"}}), 2,
                  "TESSERA_KV_CXT is unknown, did you mean TESSERA_KV_CTX?");
  expect_one_line(run_program({{"plan", "x"}, "", {"TESSERA_KV_CTX=x"}}), 2, "TESSERA_KV_CTX=x: ");
  expect_one_line(run_program({{"plan", "x"}, "", {"DFLASH_MOE_EXPERT_COMPUTE_IPC_MODES=stream"}}),
                  2, "_MODES is unknown, did you mean DFLASH_MOE_EXPERT_COMPUTE_IPC_MODE?");
  expect_one_line(run_program({{"plan", "x", "--config", "/nonexistent"}}), 2, "/nonexistent");
}

}  // namespace
}  // namespace tessera::testing
