#include "experts/measure_host.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Result<Model> golden(const std::string& name) {
  return Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/" + name + "-bf16.gguf");
}

TEST(MeasureHost, TellsACallAndASpeed) {
  const Result<Model> model = golden("qwen35moe");
  ASSERT_TRUE(model);
  for (const bool beside : {false, true}) {
    const Result<HostExpertTimes> times =
        measure_host_experts(*model, {.threads = 2, .beside = beside});
    ASSERT_TRUE(times) << times.error().message;
    EXPECT_GT(times->call_s, 0.0);
    EXPECT_GT(times->bytes_per_s, 0.0);
  }
}

TEST(MeasureHost, AModelWithoutExpertsHasNone) {
  const Result<Model> model = golden("qwen3");
  ASSERT_TRUE(model);
  const Result<HostExpertTimes> times = measure_host_experts(*model, {});
  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace tessera
