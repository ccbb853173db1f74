// A model whose layers lie on GPUs, CPUs and in workers, and whose experts lie anywhere, says what
// it says on one GPU alone. Where the GPU's kernels compute all of it that is so bit for bit.
#include <gtest/gtest.h>

#include "device/gpu/gpu_layout.h"
#include "tests/gpu/golden_answers.h"
#include "tests/gpu/on_gpu.h"
#include "tests/worker/expert_rig.h"
#include "tests/worker/layer_topology.h"

namespace tessera::testing {
namespace {

std::string program() {
  return (std::filesystem::path(program_folder()) / "tessera").string();
}

std::vector<std::string> worker_on(const DeviceName& gpu) {
  return {"--device", gpu.text(), "--gpu-plugins", plugin_folder(), "--gpu-wait", "600s"};
}

// What is asked of each run, and how often one step may have so many rows.
struct Questions {
  std::size_t tokens;
  std::vector<int> chunks;
  bool greedy;
};
// Of a GPU; of one that is emulated, which has seconds for each.
const Questions kOnACard{.tokens = 100, .chunks = {1, 8, 64, 512}, .greedy = true};
const Questions kEmulated{.tokens = 10, .chunks = {5, 10}, .greedy = false};

enum class Same { bits, numbers };

// A golden model on one GPU, against which others are held.
class PlainRun {
 public:
  PlainRun(const std::string& model, const Questions& questions)
      : questions_(questions),
        model_(model),
        golden_(GoldenData::load(golden_path(model, ".bin"))),
        ids_(golden_.ints("p300_ids").first(questions.tokens)) {
    ModelRunner runner(path(), on_gpu());
    EXPECT_TRUE(runner.ready());
    for (const int chunk : questions.chunks) logits_.push_back(runner.logits(ids_, chunk));
  }
  std::string path() const { return golden_path(model_, "-bf16.gguf"); }

  // Steps of up to 8 rows see f32 activations on either device, those of more f16 on the GPU.
  void expect_of(const RunnerOptions& options, Same same, const std::string& what) const {
    SCOPED_TRACE(model_ + ", " + what);
    ModelRunner runner(path(), options);
    ASSERT_TRUE(runner.ready());
    const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      const int chunk = questions_.chunks[i];
      const std::vector<float> got = runner.logits(ids_, chunk);
      ASSERT_EQ(got.size(), logits_[i].size());
      const double worst = worst_difference(got, logits_[i], vocab);
      std::printf("%s, %s, %d rows a step: %.1e\n", model_.c_str(), what.c_str(), chunk, worst);
      EXPECT_LT(worst, chunk <= 8 ? 1e-4 : 5e-2) << chunk << " rows a step";
      if (same == Same::bits) {
        EXPECT_TRUE(got == logits_[i]) << chunk << " rows a step";
      }
    }
    if (questions_.greedy) expect_greedy(golden_, runner, 2e-2f);
  }

 private:
  const Questions& questions_;
  std::string model_;
  GoldenData golden_;
  std::span<const TokenId> ids_;
  std::vector<std::vector<float>> logits_;  // by chunk
};

// --- Layers ---

// Letters as in layer_topology.h. Where the GPUs are not there, or the model has not as many parts,
// nothing is compared.
void expect_layers(const PlainRun& plain, const std::string& topology) {
  const auto wanted = std::count(topology.begin(), topology.end(), 'G');
  LayerWorkers workers{.gpus = gpus(static_cast<int>(wanted))};
  if (workers.gpus.empty() || !can_be_cut(plain.path(), topology.size())) return;
  RunnerOptions options = on_topology(plain.path(), topology, on_gpu(), workers);
  options.placement.layer_weights.assign(topology.size(), 1.0);
  const bool all = wanted == static_cast<std::ptrdiff_t>(topology.size());
  plain.expect_of(options, all ? Same::bits : Same::numbers, topology);
}

// W has layers on a CPU, or on the GPU that is tested.
void expect_worker_layers(const PlainRun& plain, const std::string& topology, bool gpu, Link link) {
  LayerWorkers workers{.transport = transport_of(link), .binary = program()};
  workers.gpus = gpus(1);
  if (gpu) {
    const DeviceName& name = *test_gpu().name;
    const auto info = probe_gpu(device_kind_name(name.kind), *name.team, plugin_folder());
    ASSERT_TRUE(info);
    workers.inventory.kind = name.kind;
    workers.inventory.memory_total = info->memory_total;
    workers.inventory.memory_free = info->memory_free;
    for (const std::string& word : worker_on(name)) workers.words.push_back(word);
  }
  if (link == Link::tcp) workers.listen(plain.path());
  RunnerOptions options = on_topology(plain.path(), topology, on_gpu(), workers);
  options.placement.layer_weights.assign(topology.size(), 1.0);
  const bool bits = gpu && topology == "W";
  plain.expect_of(options, bits ? Same::bits : Same::numbers,
                  fmt::format("{}, W on a {}, {}", topology, gpu ? "GPU" : "CPU", link_name(link)));
}

// --- Experts ---

// A resident layer's experts are the GPU's, whoever else there is.
void expect_experts(const PlainRun& plain, double resident, int workers, Link link,
                    const DeviceName& device = {}) {
  ExpertRig rig{.link = link, .binary = program()};
  rig.options.stream = ExpertStream::off;
  if (workers > 0) rig.waits_for_its_worker();
  if (device.gpu()) rig.more_words = worker_on(device);
  RunnerOptions options = rig.runner(plain.path(), resident, workers);
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.gpu_wait_s = on_gpu().device.gpu_wait_s;
  plain.expect_of(options, resident == 100.0 ? Same::bits : Same::numbers,
                  fmt::format("{} % resident, {} workers on {}, {}", resident, workers,
                              device.text(), link_name(link)));
  EXPECT_EQ(rig.fallbacks(), 0);
  EXPECT_EQ(rig.metrics.worker.pairs.value() > 0, resident < 100.0 && workers > 0);
  EXPECT_EQ(rig.metrics.host.pairs.value() > 0, resident < 100.0 && workers == 0);
}

bool experts_may_leave(const std::string& model) {
  const Result<Model> opened = Model::open(golden_path(model, "-bf16.gguf"));
  EXPECT_TRUE(opened);
  const std::vector<LayerSpec>& layers = opened->spec().layers;
  return gpu_experts_may_leave(opened->spec()) &&
         std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return layer.moe.has_value(); });
}

class GpuSameness : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuSameness, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(GpuSameness, OfLayersAnywhere) {
  const PlainRun plain(GetParam(), kOnACard);
  for (const char* topology : {"LG", "GL", "GG", "LGL", "LLG", "GLL", "GLG", "GGL", "LGG", "GGG",
                               "LGLG", "GLGL", "LGGL", "GLLG", "LGLL", "GLLL", "GGGG"})
    expect_layers(plain, topology);
}

TEST_P(GpuSameness, OfLayersInAWorker) {
  const PlainRun plain(GetParam(), kOnACard);
  for (const Link link : kLinks) {
    for (const char* topology : {"GW", "WG", "WGL"})
      if (can_be_cut(plain.path(), std::string_view(topology).size()))
        expect_worker_layers(plain, topology, /*gpu=*/false, link);
    for (const char* topology : {"W", "LW", "WL", "LWL"})
      if (can_be_cut(plain.path(), std::string_view(topology).size()))
        expect_worker_layers(plain, topology, /*gpu=*/true, link);
  }
}

TEST_P(GpuSameness, OfExpertsAnywhere) {
  if (!experts_may_leave(GetParam())) GTEST_SKIP() << "no experts, or they stay";
  const PlainRun plain(GetParam(), kOnACard);
  for (const double resident : {100.0, 60.0, 10.0, 0.0}) {
    expect_experts(plain, resident, 0, Link::shared);
    for (const int workers : {1, 2})
      for (const Link link : kLinks) expect_experts(plain, resident, workers, link);
    if (const std::vector<DeviceName> two = gpus(2); !two.empty())
      expect_experts(plain, resident, 1, Link::shared, two[1]);
  }
}

// Little enough for a GPU that is emulated.
TEST_P(GpuSameness, OfAFewTokens) {
  const PlainRun plain(GetParam(), kEmulated);
  for (const char* topology : {"LG", "GL", "LGL", "LGLG", "GG"}) expect_layers(plain, topology);
  expect_worker_layers(plain, "GW", /*gpu=*/false, Link::shared);
  expect_worker_layers(plain, "LW", /*gpu=*/true, Link::stream);
  if (!experts_may_leave(GetParam())) return;
  expect_experts(plain, 100.0, 1, Link::shared);
  expect_experts(plain, 60.0, 2, Link::stream);
  expect_experts(plain, 10.0, 1, Link::shared);
  expect_experts(plain, 0.0, 0, Link::shared);
}

}  // namespace
}  // namespace tessera::testing
