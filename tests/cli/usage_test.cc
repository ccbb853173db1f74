// Wrong usage, and where values come from.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
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
      {{"run", "--contxt", "3"}, "--contxt is no option of 'tessera run', did you mean --ctx?"},
      {{"run", "--ctxx", "3"}, "did you mean --ctx?"},
      {{"serve", "--draft", "x"}, "--draft is no option of 'tessera serve', but of plan"},
      {{"serve", "-n", "3"}, "-n is no option of 'tessera serve', but of run, bench"},
      {{"run", "-c", "many"}, "-c many: give a whole number from 0 to 16777216"},
      {{"run", "-p"}, "-p needs a value"},
      {{"serve", "--port", "70000"}, "--port 70000: give a whole number from 0 to 65535"},
      {{"plan", "x", "--kv-type", "f15"}, "give auto, f16, f32 or q8_0"},
      {{"plan", "x", "--kv-type", "off"}, "give auto, f16, f32 or q8_0"},
      {{"plan", "x", "--log-level", "loud"}, "give debug, info, warn, error or off"},
      {{"calibrate"}, "usage: tessera calibrate MODEL"},
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

TEST(Usage, AChoiceHasItsUsualSpellings) {
  const std::pair<const char*, const char*> levels[] = {
      {"warning", "warn"}, {"WARN", "warn"}, {"err", "error"}, {"none", "off"}, {"Info", "info"}};
  for (const auto& [spelling, level] : levels) {
    const Outcome outcome = run_program({{"plan", "--log-level", spelling, "--print-config"}});
    EXPECT_NE(outcome.out.find(std::string("log.level = \"") + level + '"'), std::string::npos)
        << outcome.err;
  }
}

TEST(Usage, WhatFailsAtRunTimeIsCodeOne) {
  expect_one_line(run_program({{"plan", missing_path()}}), 1, missing_path());
  const std::string path = scratch_folder() + "/text.gguf";
  write_file(path, "no model");
  expect_one_line(run_program({{"inspect", path}}), 1, "not a GGUF file");
  expect_one_line(run_program({{"tokenize", "hello"}}), 1, "directory; text goes behind --text");
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

TEST(Config, WhatIsPrintedPlansTheSame) {
  const std::string path = scratch_folder() + "/printed_plan.toml";
  for (const char* name : {"qwen35moe", "qwen3"}) {
    const std::string model =
        std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf";
    write_file(path, run_program({{"plan", model, "--print-config"}}).out);
    const Outcome again = run_program({{"plan", model, "--config", path}});
    EXPECT_EQ(again.code, 0) << again.err;
  }
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
}

// Where a command reads a file that the user names.
struct Named {
  std::vector<std::string> words;  // the file's name follows
  int unread = 1;                  // exit code if it cannot be read
  int wrong = 1;                   // exit code if what it holds is no such thing
  bool may_be_empty = false;
};

std::vector<Named> files_named(const std::string& model, const std::string& out) {
  return {
      {{"plan", model, "--config"}, 2, 2, true},
      {{"plan", model, "--token-file"}, 2, 2},
      {{"run", model, "-p", "a", "--expert-profile"}},
      {{"plan"}},
      {{"inspect"}},
      {{"tokenize", "--text", "a"}},
      {{"run", "-p", "a"}},
      {{"template", model, "--chat-template-file"}},
      {{"template", model, "--messages"}},
      {{"calibrate", model, "--out", out, "--text"}},
      {{"logits", model, "--out", out, "--ids-file"}, 1, 2},
      {{"serve", model, "--port", "0", "--api-key-file"}},
  };
}

TEST(Usage, FilesThatCannotBeReadAreOneLine) {
  const std::string model = scratch_folder() + "/named.gguf", out = scratch_folder() + "/named.out",
                    empty = scratch_folder() + "/named.empty";
  ASSERT_EQ(run_program({{"synth", "qwen35moe", model}}).code, 0);
  write_file(empty, "");
  // A folder; one that opens and cannot be read; one without an end; one without a byte; none.
  for (const std::string& file : {scratch_folder(), std::string("/proc/self/mem"),
                                  std::string("/dev/full"), empty, missing_path()}) {
    for (Named& named : files_named(model, out)) {
      if (file == empty && named.may_be_empty) continue;
      named.words.push_back(file);
      SCOPED_TRACE(::testing::PrintToString(named.words));
      const bool is_read = file == empty || file == "/dev/full";
      expect_one_line(run_program({named.words}), is_read ? named.wrong : named.unread, file);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(out));
  const std::vector<std::string> to_a_folder[] = {
      {"calibrate", model, "--text", model, "--out", scratch_folder()},
      {"logits", model, "--ids", "1", "--out", scratch_folder()}};
  for (const auto& words : to_a_folder) expect_one_line(run_program({words}), 1, scratch_folder());
}

}  // namespace
}  // namespace tessera::testing
