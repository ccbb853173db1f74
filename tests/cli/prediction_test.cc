// Plans that say how fast they are on a machine of which nothing was measured before.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Each test has a cache of its own.
class PredictionCommand : public ::testing::Test {
 protected:
  PredictionCommand()
      : folder_(scratch_folder() + "/cache-" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  Json plan(const Words& options = {}) const {
    Words words = {"plan", kDenseModel, "-c", "256", "--json"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome =
        run_program({.arguments = words, .environment = {"XDG_CACHE_HOME=" + folder_}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  Json entries() const { return Json::parse(read_file(file())); }
  std::string file() const { return folder_ + "/tessera/machine.json"; }

  const std::string folder_;
};

double token_s(const Json& plan) {
  return 1.0 / plan["predicted"]["decode"]["tokens_per_s"].get<double>();
}

TEST_F(PredictionCommand, AQuickLookIsTakenOnceAndKept) {
  const Json first = plan();
  ASSERT_FALSE(first["predicted"].is_null());
  EXPECT_FALSE(first["predicted"]["measured"]);
  for (const char* part : {"prefill", "decode"})
    EXPECT_GT(first["predicted"][part]["tokens_per_s"], 0.0) << part;
  const std::string kept = read_file(file());
  ASSERT_EQ(entries().size(), 1u);
  EXPECT_EQ(plan()["predicted"], first["predicted"]);
  EXPECT_EQ(read_file(file()), kept);
  // So what is kept is what counts. So slow that reading bounds every part, whatever was measured.
  const double reads = entries()[0]["read_bytes_per_s"];
  const auto slower = [&](double times) {
    Json json = entries();
    json[0]["read_bytes_per_s"] = reads / times;
    write_file(file(), json.dump());
    return token_s(plan());
  };
  const double slow = slower(100);
  EXPECT_GT(slow, token_s(first));
  EXPECT_NEAR(slower(200), 2 * slow, 1e-3 * slow);
  // Another number of threads is another machine.
  EXPECT_FALSE(plan({"--threads", "1", "--cpu-isa", "portable"})["predicted"].is_null());
  EXPECT_EQ(entries().size(), 2u);
}

TEST_F(PredictionCommand, HalfOfAMeasurementIsNone) {
  const Json first = plan();
  Json half = entries();
  half[0]["op_per_s"] = 0.0;
  write_file(file(), half.dump());
  EXPECT_FALSE(plan()["predicted"].is_null());
  ASSERT_EQ(entries().size(), 1u);
  EXPECT_GT(entries()[0]["op_per_s"], 0.0);
}

TEST_F(PredictionCommand, ACacheThatCannotBeWrittenIsNoError) {
  write_file(folder_, "a file where the folder should be");
  EXPECT_FALSE(plan()["predicted"].is_null());
}

TEST_F(PredictionCommand, TeamsAreLookedAtTogether) {
  const Json json = plan({"--target-devices", "cpu:0,cpu:1", "--threads", "2"});
  EXPECT_EQ(json["predicted"]["shards"].size(), 2u);
  ASSERT_EQ(entries().size(), 1u);
  EXPECT_EQ(entries()[0]["key"]["threads"], 2);
}

TEST_F(PredictionCommand, ThreadsWithoutCoresDoNoMore) {
  plan();
  plan({"--threads", "256"});
  ASSERT_EQ(entries().size(), 2u);
  const double all = entries()[0]["op_per_s"], more = entries()[1]["op_per_s"];
  EXPECT_LT(more, 8 * all) << "other work on this machine makes no such difference";
}

// With as many threads as this process it is predicted by the same measurement.
TEST_F(PredictionCommand, AWorkersArithmeticCounts) {
  const Json json = plan(
      {"--spawn-worker", "layers,threads=1", "--target-devices", "worker:0,cpu", "--threads", "1"});
  ASSERT_EQ(entries().size(), 1u);
  for (const char* speed : {"op_per_s", "read_bytes_per_s"}) {
    const double kept = entries()[0][speed];
    EXPECT_NEAR(json["shards"][0][speed], kept, 1e-3 * kept) << speed;
  }
  EXPECT_TRUE(json["shards"][1]["op_per_s"].is_null());
  ASSERT_FALSE(json["predicted"].is_null());
}

}  // namespace
}  // namespace tessera::testing
