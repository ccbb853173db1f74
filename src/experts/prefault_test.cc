// What the plan counts as locked is what the system has locked.
#include "experts/prefault.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace tessera {
namespace {

// Of this process.
std::int64_t locked_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmLck:")) return std::stoll(line.substr(6)) * 1024;
  return -1;
}

// All experts away whose number leaves this rest.
ShardLayout layout_without(const ModelSpec& spec, int divisor) {
  ShardLayout layout;
  layout.end_layer = spec.n_layer();
  for (const LayerSpec& layer : spec.layers) {
    LayerExperts& experts = layout.experts.emplace_back();
    for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
      experts.home.push_back(e % divisor == 0 ? ExpertHome::host() : ExpertHome::resident());
  }
  return layout;
}

TEST(Prefault, LocksWhatIsCounted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // sanitized.cmake
  GTEST_SKIP() << "the sanitizer's mlock locks nothing";
#endif
  for (const char* name : {"qwen35moe", "laguna"}) {
    for (const int divisor : {1, 3}) {
      const Result<Model> model =
          Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
      ASSERT_TRUE(model) << model.error().message;
      const ShardLayout layout = layout_without(model->spec(), divisor);
      const std::int64_t before = locked_now();
      if (const Status locked = prefault_experts(*model, layout, ExpertPrefault::lock); !locked)
        GTEST_SKIP() << locked.error().message;
      const std::int64_t taken = locked_now() - before;
      const std::int64_t counted = locked_bytes(*model, layout);
      EXPECT_GT(taken, 0);
      EXPECT_GE(counted, taken) << name << " " << divisor;
      // A page at the border of each pair of tensors.
      const std::int64_t borders = 3 * model->spec().n_layer() * ::sysconf(_SC_PAGESIZE);
      EXPECT_LE(counted, taken + borders) << name << " " << divisor;
    }
  }
}

TEST(Prefault, LocksNothingOfALayoutWithoutExpertsAway) {
  const Result<Model> model =
      Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  ASSERT_TRUE(model) << model.error().message;
  ShardLayout layout;
  layout.end_layer = model->spec().n_layer();
  EXPECT_EQ(locked_bytes(*model, layout), 0);
}

}  // namespace
}  // namespace tessera
