// Sizes of what a client or a file may ask for and no memory holds: they stop at what can be
// counted, so that no budget takes them for little.
#include <gtest/gtest.h>

#include <limits>

#include "device/cpu/cpu_device.h"
#include "device/cpu/scratch.h"
#include "device/cpu/state_memory.h"
#include "device/gpu/gpu_layout.h"

namespace tessera {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

Model golden() {
  return *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
}

// The most that the readers take.
void make_wide(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    auto& attention = std::get<AttentionSpec>(layer.mixer);
    attention.n_head = attention.n_kv_head = 1 << 13;
    attention.head_dim_k = attention.head_dim_v = 1 << 13;
  }
}

ShardLayout layout_of(const ModelSpec& spec, int pages) {
  ShardLayout layout;
  layout.end_layer = spec.n_layer();
  layout.max_rows = 16;
  layout.max_logit_rows = 1;
  layout.slots = 4;
  layout.kv_type = KvType::f32;
  layout.kv_pages.assign(kv_groups(spec).size(), pages);
  return layout;
}

TEST(FootprintLimits, KvOfAllPagesNeverWraps) {
  ModelSpec spec = golden().spec();
  make_wide(spec);
  const ShardLayout layout = layout_of(spec, std::numeric_limits<int>::max());
  EXPECT_EQ(cpu::state_layout(spec, layout).kv_bytes(layout), kMost);
  EXPECT_EQ(gpu::state_layout(spec, layout).kv_bytes(layout), kMost);
  const ShardLayout small = layout_of(spec, 3);
  const cpu::StateLayout state = cpu::state_layout(spec, small);
  EXPECT_EQ(state.kv_bytes(small), 3 * state.page_bytes.front());
}

TEST(FootprintLimits, ScratchOfAllPagesNeverWraps) {
  ModelSpec spec = golden().spec();
  for (LayerSpec& layer : spec.layers) {
    auto& attention = std::get<AttentionSpec>(layer.mixer);
    attention.n_head = 1 << 13;
    attention.n_kv_head = 1;
    attention.head_dim_k = attention.head_dim_v = 1 << 13;
  }
  const ShardLayout layout = layout_of(spec, std::numeric_limits<int>::max());
  cpu::Scratch scratch;
  EXPECT_EQ(cpu::carve_scratch(spec, layout, 1 << 20, nullptr, scratch), kMost);
}

// A GPU's table of pages is longer then than a context can be.
TEST(FootprintLimits, AGpusWorkspaceIsThatOfTheLongestContext) {
  const Model model = golden();
  const std::int64_t context = std::int64_t{1} << 30;
  const ShardLayout longest = layout_of(model.spec(), static_cast<int>(context / kPageTokens));
  const ShardLayout more = layout_of(model.spec(), std::numeric_limits<int>::max());
  gpu::Scratch a, b;
  const gpu::WeightLayout weights = gpu::weight_layout(model.tensors(), model.spec(), longest);
  (void)gpu::carve_scratch(model.spec(), longest, weights, nullptr, a);
  (void)gpu::carve_scratch(model.spec(), more, weights, nullptr, b);
  EXPECT_EQ(a.workspace_bytes, b.workspace_bytes);
  EXPECT_EQ(gpu_footprint(model, more).kv,
            gpu::state_layout(model.spec(), more).page_bytes.front() * more.kv_pages.front());
}

}  // namespace
}  // namespace tessera
