// Each block of the GPU device against the CPU device, on the same random residual rows: every
// family, every block type, from one row to thousands.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "base/checked.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/isa.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

constexpr int kSlots = 8;

// A batch of several sequences whose pages and slots lie side by side.
class Rows {
 public:
  // `counts` rows of each sequence, which has `before` positions already.
  Rows(const ModelSpec& spec, const ShardLayout& shard, const std::vector<int>& counts, int before,
       std::mt19937& random) {
    const std::size_t groups = kv_groups(spec).size();
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (std::size_t g = 0; g < groups; ++g) {
        const int of_sequence = shard.kv_pages[g] / kSlots;
        std::vector<std::int32_t>& table = tables_.emplace_back();
        for (int p = 0; p < ceil_div(before + counts[i], kPageTokens); ++p)
          table.push_back(static_cast<std::int32_t>(i) * of_sequence + (p * 7 + 3) % of_sequence);
      }
    for (const auto& table : tables_) views_.push_back(table);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      sequences_.push_back({.first_row = static_cast<int>(tokens_.size()),
                            .n_rows = counts[i],
                            .first_position = before,
                            .slot = static_cast<int>(i),
                            .pages = std::span(views_).subspan(i * groups, groups)});
      for (int r = 0; r < counts[i]; ++r)
        tokens_.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(spec.n_token)));
    }
    const int n = static_cast<int>(tokens_.size());
    for (int i = std::max(0, n - shard.max_logit_rows); i < n; ++i) logit_rows_.push_back(i);
  }
  BatchView view() const { return {tokens_, sequences_, logit_rows_}; }
  int rows() const { return static_cast<int>(tokens_.size()); }

 private:
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::span<const std::int32_t>> views_;
  std::vector<SequenceRows> sequences_;
};

// |got - expected| / |expected - input|, over the rows in `counted`.
double difference(std::span<const float> got, std::span<const float> expected,
                  std::span<const float> input, const std::vector<bool>& counted) {
  double error = 0.0, size = 0.0;
  const std::size_t width = got.size() / counted.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!counted[i / width]) continue;
    const double delta = input.empty() ? expected[i] : expected[i] - input[i];
    const double wrong = static_cast<double>(got[i]) - expected[i];
    if (std::isnan(wrong)) return INFINITY;
    error += wrong * wrong;
    size += delta * delta;
  }
  return size > 0.0 ? std::sqrt(error / size) : std::sqrt(error);
}

class Devices {
 public:
  Devices(const std::string& path, KvType kv_type, int max_rows) : kv_type_(kv_type) {
    Result<Model> model = Model::open(path);
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return;
    spec_ = model->spec();
    shard_.end_layer = spec_.n_layer();
    shard_.max_rows = max_rows;
    shard_.max_logit_rows = 16;
    shard_.slots = kSlots;
    shard_.kv_type = kv_type;
    shard_.context = max_rows + 512;
    for (std::size_t g = 0; g < kv_groups(spec_).size(); ++g)
      shard_.kv_pages.push_back(kSlots * ceil_div(shard_.context, kPageTokens));
    auto cpu = make_cpu_device({.threads = 4});
    auto gpu =
        make_gpu_device(device_kind_name(test_gpu().name->kind),
                        {.index = *test_gpu().name->team, .load_threads = 2}, plugin_folder());
    EXPECT_TRUE(cpu && gpu) << gpu.error().message;
    if (!cpu || !gpu) return;
    for (const Status& loaded :
         {(*cpu)->load(*model, shard_, {}), (*gpu)->load(*model, shard_, {})})
      EXPECT_TRUE(loaded) << loaded.error().message;
    cpu_ = *std::move(cpu);
    gpu_ = *std::move(gpu);
  }

  bool ready() const { return gpu_ != nullptr; }

  struct Worst {
    double embed = 0.0, mixer = 0.0, ffn = 0.0, head = 0.0;
    int other_experts = 0;  // rows that chose differently
  };

  // Every block of every layer on random rows, after `before` others of each sequence.
  Worst compare(const std::vector<int>& counts, int before, unsigned seed) {
    std::mt19937 random(seed);
    for (int slot = 0; slot < kSlots; ++slot)
      for (Device* device : {cpu_.get(), gpu_.get()}) device->reset_slot(slot);
    if (before > 0) fill_contexts(static_cast<int>(counts.size()), before, random);
    const Rows rows(spec_, shard_, counts, before, random);
    const std::size_t floats = static_cast<std::size_t>(rows.rows()) * embd();
    Worst worst;
    std::vector<float> input(floats, NAN), on_cpu(floats), on_gpu(floats);
    const std::vector<bool> all(static_cast<std::size_t>(rows.rows()), true);

    both(
        rows, input, [](Device& device) { device.embed(); }, on_cpu, on_gpu);
    worst.embed = difference(on_gpu, on_cpu, {}, all);
    for (int l = 0; l < spec_.n_layer(); ++l) {
      randomise(input, random);
      both(
          rows, input, [&](Device& device) { device.mixer(l); }, on_cpu, on_gpu);
      worst.mixer = std::max(worst.mixer, difference(on_gpu, on_cpu, input, all));
      randomise(input, random);
      const std::vector<bool> same = same_experts(rows, input, l);
      worst.other_experts += static_cast<int>(std::count(same.begin(), same.end(), false));
      both(
          rows, input, [&](Device& device) { ffn(device, l); }, on_cpu, on_gpu);
      worst.ffn = std::max(worst.ffn, difference(on_gpu, on_cpu, input, same));
    }
    randomise(input, random);
    both(
        rows, input, [](Device& device) { device.head(); }, on_cpu, on_gpu);
    const std::vector<bool> logits(rows.view().logit_rows.size(), true);
    worst.head = difference(gpu_->logits(), cpu_->logits(), {}, logits);
    const Status fault = gpu_->fault();
    EXPECT_TRUE(fault) << fault.error().message;
    return worst;
  }

 private:
  // One sequence after the other, so that any number fits.
  void fill_contexts(int sequences, int positions, std::mt19937& random) {
    for (int i = 0; i < sequences; ++i) {
      std::vector<int> counts(static_cast<std::size_t>(i) + 1, 0);
      counts.back() = positions;
      const Rows rows(spec_, shard_, counts, 0, random);
      std::vector<float> input(static_cast<std::size_t>(positions) * embd());
      for (int l = 0; l < spec_.n_layer(); ++l) {
        randomise(input, random);
        for (Device* device : {cpu_.get(), gpu_.get()}) {
          device->begin(rows.view());
          device->write_hidden(input);
          device->mixer(l);
        }
      }
    }
  }

  std::size_t embd() const { return static_cast<std::size_t>(spec_.n_embd); }

  static void ffn(Device& device, int layer) {
    device.route(layer);
    device.all_experts(layer);
    device.dense(layer);
    device.finish_ffn(layer);
  }

  static void randomise(std::vector<float>& rows, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (float& x : rows) x = normal(random);
  }

  template <typename F>
  void both(const Rows& rows, std::span<const float> input, F block, std::span<float> on_cpu,
            std::span<float> on_gpu) {
    for (Device* device : {cpu_.get(), gpu_.get()}) {
      device->begin(rows.view());
      device->write_hidden(input);
      block(*device);
      const std::span<float> out = device == cpu_.get() ? on_cpu : on_gpu;
      std::fill(out.begin(), out.end(), NAN);
      device->read_hidden(out);
    }
  }

  // By row: whether both devices chose the same experts. Rounding decides near ties.
  std::vector<bool> same_experts(const Rows& rows, std::span<const float> input, int layer) {
    std::vector<bool> same(static_cast<std::size_t>(rows.rows()), true);
    if (!spec_.layers[static_cast<std::size_t>(layer)].moe) return same;
    for (Device* device : {cpu_.get(), gpu_.get()}) {
      device->begin(rows.view());
      device->write_hidden(input);
      device->route(layer);
    }
    const std::span<const RoutedPair> a = cpu_->routed_pairs(), b = gpu_->routed_pairs();
    EXPECT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      EXPECT_EQ(a[i].row, b[i].row);
      EXPECT_EQ(a[i].slot, b[i].slot);
      const auto row = static_cast<std::size_t>(a[i].row);
      if (a[i].expert != b[i].expert) same[row] = false;
      if (!same[row]) continue;
      EXPECT_NEAR(a[i].weight, b[i].weight, 1e-3f * std::abs(a[i].weight) + 1e-5f);
    }
    return same;
  }

  KvType kv_type_;
  ModelSpec spec_;
  ShardLayout shard_;
  std::unique_ptr<Device> cpu_, gpu_;
};

// Both devices round activations to 8 bits for quantised weights, each in its own order; the GPU's
// tiles round to f16 instead.
double tolerance(BlockType type, int rows) {
  if (block_format(type).elems > 1) return 3e-2;
  return rows > 8 || type != BlockType::F32 ? 5e-3 : 1e-3;
}

void expect_close(Devices& devices, const std::vector<int>& counts, int before, BlockType type) {
  const int rows = std::accumulate(counts.begin(), counts.end(), 0);
  const Devices::Worst worst = devices.compare(counts, before, static_cast<unsigned>(rows));
  const double most = tolerance(type, rows);
  std::printf("  %5d rows at %4d: embed %.1e mixer %.1e ffn %.1e head %.1e, %d rows chose others\n",
              rows, before, worst.embed, worst.mixer, worst.ffn, worst.head, worst.other_experts);
  EXPECT_LT(worst.embed, 1e-5);
  EXPECT_LT(worst.mixer, most);
  EXPECT_LT(worst.ffn, most);
  EXPECT_LT(worst.head, most);
  EXPECT_LE(worst.other_experts, 1 + rows / 10);
}

const char* const kFamilies[] = {"qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"};

class GpuBlocks : public ::testing::TestWithParam<BlockType> {};
INSTANTIATE_TEST_SUITE_P(Types, GpuBlocks,
                         ::testing::ValuesIn(all_block_types().begin(), all_block_types().end()),
                         [](const auto& info) { return block_type_name(info.param); });

TEST_P(GpuBlocks, MatchTheCpu) {
  GPU_OR_SKIP();
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const TypedModel model(family, GetParam());
    Devices devices(model.path(), KvType::f16, 320);
    ASSERT_TRUE(devices.ready());
    std::printf("%s in %s\n", family, block_type_name(GetParam()));
    expect_close(devices, {33}, 0, GetParam());
    for (const int rows : {1, 2, 5, 8})
      expect_close(devices, std::vector<int>(static_cast<std::size_t>(rows), 1), 33, GetParam());
    expect_close(devices, {3}, 33, GetParam());
    expect_close(devices, {1, 17, 1, 70, 3}, 33, GetParam());
    expect_close(devices, {300}, 0, GetParam());
    expect_close(devices, {1, 1}, 300, GetParam());
  }
}

// Far too much for a GPU that is emulated.
TEST_P(GpuBlocks, ThousandsOfRowsMatchTheCpu) {
  GPU_OR_SKIP();
  for (const char* family : {"qwen35moe", "gemma4moe"}) {
    SCOPED_TRACE(family);
    const TypedModel model(family, GetParam());
    Devices devices(model.path(), KvType::f16, 4096);
    ASSERT_TRUE(devices.ready());
    std::printf("%s in %s\n", family, block_type_name(GetParam()));
    for (const int rows : {1000, 4096}) expect_close(devices, {rows}, 0, GetParam());
    expect_close(devices, {1, 2000, 1, 63}, 64, GetParam());
  }
}

// Little enough for a GPU that is emulated: few rows, and a tile that is not full.
void expect_few_close(const std::string& family, BlockType type, const char* layers) {
  SCOPED_TRACE(family);
  const TypedModel model(family, type, {layers});
  Devices devices(model.path(), KvType::f16, 16);
  ASSERT_TRUE(devices.ready());
  std::printf("%s in %s\n", family.c_str(), block_type_name(type));
  expect_close(devices, {9}, 0, type);
  expect_close(devices, {1, 2}, 5, type);
}

TEST_P(GpuBlocks, FewRowsMatchTheCpu) {
  GPU_OR_SKIP();
  expect_few_close("qwen3", GetParam(), "block_count=1");
}

// Each mixer and each feed-forward block.
TEST(GpuBlocksAt, FewRowsOfEachKind) {
  GPU_OR_SKIP();
  for (const auto& [family, layers] : {std::pair{"qwen35moe", "block_count=1"},
                                       {"qwen35moe", "block_count=4"},
                                       {"laguna", "block_count=2"},
                                       {"gemma4", "block_count=2"},
                                       {"gemma4moe", "block_count=2"}})
    expect_few_close(family, BlockType::Q4_K, layers);
}

TEST(GpuBlocksAt, EveryKvType) {
  GPU_OR_SKIP();
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0})
    for (const char* family : {"qwen3", "laguna", "gemma4"}) {
      SCOPED_TRACE(std::string(family) + " " + kv_type_name(type));
      const TypedModel model(family, BlockType::Q8_0);
      Devices devices(model.path(), type, 320);
      ASSERT_TRUE(devices.ready());
      expect_close(devices, {200}, 0, BlockType::Q8_0);
      expect_close(devices, {1, 1, 1}, 200, BlockType::Q8_0);
      expect_close(devices, {40, 1}, 200, BlockType::Q8_0);
    }
}

}  // namespace
}  // namespace tessera::testing
