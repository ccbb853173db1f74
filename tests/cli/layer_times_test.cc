// Layers cut by measured times: who measures, what is kept, and what becomes of a cache that
// someone made up.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const Words kOnTwo = {"--target-devices", "cpu:0,cpu:1", "-t", "2", "-c", "256"};

// Each test has a cache of its own.
class LayerTimesCommand : public ::testing::Test {
 protected:
  LayerTimesCommand()
      : folder_(scratch_folder() + "/cache-" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  Outcome run(Words words, const Words& more = kOnTwo) const {
    words.insert(words.end(), more.begin(), more.end());
    return run_program({.arguments = words, .environment = {"XDG_CACHE_HOME=" + folder_}});
  }
  Json plan(const Words& options = {}, const Words& more = kOnTwo) const {
    Words words = {"plan", kDenseModel, "--json"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = run(words, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  std::string file() const { return folder_ + "/tessera/machine.json"; }
  void write(const std::string& text) const {
    std::filesystem::create_directories(folder_ + "/tessera");
    write_file(file(), text);
  }

  // By which the times that are kept varied, says the file.
  void set_spread(double spread) const {
    Json entries = Json::parse(read_file(file()));
    for (Json& entry : entries)
      if (entry.contains("layers")) entry["spread"] = spread;
    write(entries.dump());
  }

  const std::string folder_;
};

const Words kRun = {"run", kDenseModel, "--ids", "5,6,7", "-n", "2", "--temp", "0", "--json"};

TEST_F(LayerTimesCommand, PlansMeasureWhenAskedAndKeepIt) {
  const Json blind = plan();
  EXPECT_EQ(blind["cut_by"], "bytes");
  EXPECT_EQ(blind["predicted"]["measured"], false);
  EXPECT_EQ(read_file(file()).find("layers"), std::string::npos);

  const Json measured = plan({"--layer-times", "measure"});
  EXPECT_EQ(measured["cut_by"], "times");
  EXPECT_EQ(measured["predicted"]["measured"], true);
  EXPECT_GT(measured["predicted"]["decode"]["tokens_per_s"].get<double>(), 0.0);
  for (const Json& shard : measured["shards"])
    EXPECT_GT(shard["measured_time"]["token_s"].get<double>(), 0.0);

  const std::string kept = read_file(file());
  const Json again = plan();
  EXPECT_EQ(again["cut_by"], "times");
  EXPECT_EQ(again["predicted"], measured["predicted"]);
  EXPECT_EQ(read_file(file()), kept);
  EXPECT_EQ(plan({"--layer-times", "bytes"})["cut_by"], "bytes");
  // Another size of pieces, another number of threads: other times.
  EXPECT_EQ(plan({"--prefill-chunk", "32"})["cut_by"], "bytes");
  EXPECT_EQ(plan({"-t", "3"}, {"--target-devices", "cpu:0,cpu:1"})["cut_by"], "bytes");
  // Cuts by weights use what is known.
  const Json fixed = plan({"--target-layer-split", "1,1"});
  EXPECT_EQ(fixed["cut_by"], "weights");
  EXPECT_EQ(fixed["predicted"]["measured"], true);
}

TEST_F(LayerTimesCommand, RunMeasuresOnce) {
  const Outcome first = run(kRun);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find("cpu:0: measuring"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("cpu:1: measuring"), std::string::npos) << first.err;
  EXPECT_EQ(Json::parse(first.out)["plan"]["cut_by"], "times");
  set_spread(0.0);
  const Outcome second = run(kRun);
  EXPECT_EQ(second.err.find("measuring"), std::string::npos) << second.err;
  EXPECT_EQ(Json::parse(second.out)["tokens"], Json::parse(first.out)["tokens"]);
  // One device has nothing to cut.
  EXPECT_EQ(run(kRun, {"-t", "1"}).err.find("measuring"), std::string::npos);
}

// Other work may have used the machine.
TEST_F(LayerTimesCommand, TimesThatWereNotSteadyAreMeasuredAgain) {
  ASSERT_EQ(run(kRun).code, 0);
  set_spread(0.0);
  EXPECT_TRUE(plan()["warnings"].empty());
  set_spread(1e6);
  const Json warnings = plan()["warnings"];
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].get<std::string>().find("the layers on cpu:0 varied by 100000000 %"),
            std::string::npos)
      << warnings;
  const Outcome again = run(kRun);
  EXPECT_NE(again.err.find("cpu:0: measuring the model's layers again"), std::string::npos)
      << again.err;
  for (const Json& entry : Json::parse(read_file(file())))
    EXPECT_LT(entry.value("spread", 0.0), 1e6) << "the steadier ones are kept";
  // Who says where to cut needs no times.
  set_spread(1e6);
  Words fixed = kOnTwo;
  fixed.insert(fixed.end(), {"--target-layer-split", "1,1"});
  EXPECT_EQ(run(kRun, fixed).err.find("measuring"), std::string::npos);
}

TEST_F(LayerTimesCommand, WorkersThatAreStartedAlikeAreMeasuredOnce) {
  const Words workers = {
      "--spawn-worker", "layers,threads=1", "--spawn-worker", "layers,threads=1", "-c", "256"};
  const Words order = {"--target-devices", "worker:0,worker:1,cpu"};
  Words all = workers;
  all.insert(all.end(), order.begin(), order.end());
  const Outcome outcome = run(kRun, all);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("worker:0: measuring"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("worker:1: measuring"), std::string::npos) << outcome.err;
  const Json json = Json::parse(outcome.out)["plan"];
  EXPECT_EQ(json["cut_by"], "times");
  EXPECT_EQ(json["predicted"]["measured"], true);
}

// A device that is three times slower, says the file, gets fewer layers.
TEST_F(LayerTimesCommand, TheCutFollowsTheTimes) {
  plan({"--layer-times", "measure"});
  Json entries = Json::parse(read_file(file()));
  ASSERT_EQ(entries.size(), 2u);
  const auto even = [&](Json& entry, double layer_s) {
    for (Json& layer : entry["layers"]) layer = {layer_s / 10, layer_s};
    entry["call"] = {0.0, 0.0};
    entry["head_s"] = 0.0;
  };
  const auto first_layers = [&](double a, double b) {
    for (Json& entry : entries) even(entry, entry["key"]["device"] == "cpu:0" ? a : b);
    write(entries.dump());
    const Json json = plan();
    EXPECT_EQ(json["cut_by"], "times");
    return json["shards"][0]["end_layer"].get<int>();
  };
  const int half = first_layers(1e-3, 1e-3);
  EXPECT_LT(first_layers(3e-3, 1e-3), half);
  EXPECT_GT(first_layers(1e-3, 3e-3), half);
}

TEST_F(LayerTimesCommand, AFileThatSomeoneMadeUpIsPassedOver) {
  plan({"--layer-times", "measure"});
  const Json good = Json::parse(read_file(file()));
  const auto with = [&](auto change) {
    Json entries = good;
    for (Json& entry : entries) change(entry);
    return entries.dump();
  };
  const std::string texts[] = {
      "",
      "{",
      "null",
      "[[[[",
      std::string(100000, '['),
      R"([1, "x", null, {}, {"key": 5}, {"key": {}}])",
      R"({"key": {}})",
      with([](Json& entry) { entry["layers"] = 7; }),
      with([](Json& entry) { entry["layers"] = Json::array(); }),
      with([](Json& entry) {
        entry["layers"][0] = {-1.0, 1.0};
      }),
      with([](Json& entry) {
        entry["layers"][0] = {0.0, 0.0};
      }),
      with([](Json& entry) {
        entry["layers"][0] = {1e300, 1e300};
      }),
      with([](Json& entry) { entry["layers"][0] = "fast"; }),
      with([](Json& entry) {
        entry["layers"].push_back({1.0, 1.0});
      }),
      with([](Json& entry) {
        entry["call"] = {-1.0, 0.0};
      }),
      with([](Json& entry) { entry.erase("call"); }),
      with([](Json& entry) { entry["head_s"] = -3; }),
      with([](Json& entry) { entry["key"] = entry["layers"]; }),
  };
  for (const std::string& text : texts) {
    SCOPED_TRACE(text.substr(0, 200));
    write(text);
    EXPECT_EQ(plan()["cut_by"], "bytes");
  }
  // And is replaced by one that is right.
  write(texts[1]);
  EXPECT_EQ(plan({"--layer-times", "measure"})["cut_by"], "times");
  EXPECT_EQ(plan()["cut_by"], "times");
}

// Its plan fits, since weights may stay in the file; measuring wants all of a layer's.
TEST_F(LayerTimesCommand, ADeviceThatIsTooSmallToMeasureIsTold) {
  const Words words = {"plan",
                       TESSERA_SOURCE_DIR "/models/tessera-mini.gguf",
                       "--budget",
                       "cpu:1=2MiB",
                       "--prefill-chunk",
                       "16"};
  const auto one_line = [](std::string text) {
    for (std::size_t at = 0; (at = text.find("\n  ")) != std::string::npos;)
      text.replace(at, 3, " ");
    return text;
  };
  const std::string why = "its memory does not hold all weights of layer 1";
  Words measure = words;
  measure.insert(measure.end(), {"--layer-times", "measure"});
  const Outcome told = run(measure);
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.err.find("cpu:1: its layers were not measured (" + why + ")"), std::string::npos)
      << told.err;
  EXPECT_NE(one_line(told.out).find("by their bytes; cpu:1 was not measured: " + why + ".\n"),
            std::string::npos)
      << told.out;
  EXPECT_NE(
      one_line(run(words).out).find("by their bytes; --layer-times measure cuts them by time."),
      std::string::npos);
}

TEST_F(LayerTimesCommand, ACacheThatCannotBeWrittenIsNoError) {
  write_file(folder_, "a file where the folder should be");
  EXPECT_EQ(plan({"--layer-times", "measure"})["cut_by"], "times");
  EXPECT_EQ(plan()["cut_by"], "bytes");
}

TEST_F(LayerTimesCommand, MistakesSayWhatWouldBeRight) {
  const Outcome wrong = run({"plan", kDenseModel, "--layer-times", "sometimes"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("auto, measure or bytes"), std::string::npos) << wrong.err;
  EXPECT_EQ(run({"plan", kDenseModel, "--prompt-ratio", "-1"}).code, 2);
  // What cannot be planned is told before anything is measured.
  const Outcome tight =
      run({"plan", kDenseModel, "--layer-times", "measure", "--budget", "cpu:1=100KiB"});
  EXPECT_EQ(tight.code, 1);
  EXPECT_NE(tight.err.find("cpu:1 lacks"), std::string::npos) << tight.err;
  EXPECT_EQ(tight.err.find("measuring"), std::string::npos) << tight.err;
}

}  // namespace
}  // namespace tessera::testing
