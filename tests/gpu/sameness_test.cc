// A model whose layers lie on GPUs, CPUs and in workers, and whose experts lie anywhere, says what
// it says on one GPU alone. Where the GPU's kernels compute all of it that is so bit for bit.
#include <gtest/gtest.h>

#include "device/gpu/gpu_layout.h"
#include "tests/golden_answers.h"
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

// Tokens of the prompt, in steps of so many rows.
struct Question {
  std::size_t tokens;
  int chunk;
};
struct Questions {
  std::vector<Question> prompts;
  bool greedy;
};
const Questions kOnACard{.prompts = {{33, 1}, {33, 8}, {100, 64}, {300, 512}}, .greedy = true};
// For a GPU that is emulated, which computes a few rows a second: of a token, and of a tile's.
const Questions kFewSteps{.prompts = {{2, 1}, {9, 9}}, .greedy = false};
// Where each row has experts.
const Questions kFewRows{.prompts = {{1, 1}, {4, 4}}, .greedy = false};

enum class Same { bits, numbers };

// A golden model on one GPU, against which others are held.
class PlainRun {
 public:
  PlainRun(const std::string& model, const Questions& questions)
      : questions_(questions),
        model_(model),
        golden_(GoldenData::load(golden_path(model, ".bin"))) {
    ModelRunner runner(path(), on_gpu());
    if (!runner.ready()) {
      ADD_FAILURE() << model << " does not load";
      return;
    }
    for (const Question& question : questions.prompts) logits_.push_back(answer(runner, question));
  }
  std::string path() const { return golden_path(model_, "-bf16.gguf"); }

  // Steps of up to 8 rows see f32 activations on either device; more rows may see f16 on the GPU.
  void expect_of(const RunnerOptions& options, Same same, const std::string& what) const {
    SCOPED_TRACE(model_ + ", " + what);
    ModelRunner runner(path(), options);
    ASSERT_TRUE(runner.ready());
    ASSERT_EQ(logits_.size(), questions_.prompts.size());
    const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      const int chunk = questions_.prompts[i].chunk;
      const std::vector<float> got = answer(runner, questions_.prompts[i]);
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
  std::vector<float> answer(ModelRunner& runner, const Question& question) const {
    return runner.logits(golden_.ints("p300_ids").first(question.tokens), question.chunk);
  }

  const Questions& questions_;
  std::string model_;
  GoldenData golden_;
  std::vector<std::vector<float>> logits_;  // by question
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

// Workers have what is not resident; where there is none the host has it.
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
  for (const Link link : {Link::shared, Link::stream}) {
    for (const char* topology : {"GW", "WG", "WGL"})
      expect_worker_layers(plain, topology, /*gpu=*/false, link);
    for (const char* topology : {"W", "LW", "WL", "LWL"})
      expect_worker_layers(plain, topology, /*gpu=*/true, link);
  }
  expect_worker_layers(plain, "GW", /*gpu=*/false, Link::tcp);
  expect_worker_layers(plain, "LW", /*gpu=*/true, Link::tcp);
}

TEST_P(GpuSameness, OfExpertsAnywhere) {
  if (!experts_may_leave(GetParam())) GTEST_SKIP() << "no experts, or they stay";
  const PlainRun plain(GetParam(), kOnACard);
  for (const double resident : {100.0, 60.0, 10.0, 0.0}) {
    expect_experts(plain, resident, 0, Link::shared);
    for (const int workers : {1, 2})
      for (const Link link : {Link::shared, Link::stream})
        expect_experts(plain, resident, workers, link);
    if (const std::vector<DeviceName> two = gpus(2); !two.empty())
      expect_experts(plain, resident, 1, Link::shared, two[1]);
  }
  expect_experts(plain, 0.0, 2, Link::tcp);
}

// Little enough for a GPU that is emulated, of a small model.
TEST_P(GpuSameness, LayersInAFewSteps) {
  const PlainRun plain(GetParam(), kFewSteps);
  for (const char* topology : {"LG", "GLG", "LGLG", "GG"}) expect_layers(plain, topology);
  expect_worker_layers(plain, "GW", /*gpu=*/false, Link::shared);
  expect_worker_layers(plain, "LW", /*gpu=*/true, Link::stream);
}

TEST_P(GpuSameness, ExpertsInAFewSteps) {
  if (!experts_may_leave(GetParam())) GTEST_SKIP() << "no experts, or they stay";
  const PlainRun plain(GetParam(), kFewRows);
  expect_experts(plain, 100.0, 1, Link::shared);
  expect_experts(plain, 60.0, 2, Link::stream);
  expect_experts(plain, 10.0, 1, Link::shared);
  expect_experts(plain, 0.0, 0, Link::shared);
}

}  // namespace
}  // namespace tessera::testing
