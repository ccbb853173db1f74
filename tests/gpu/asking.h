// A shard on a GPU that lacks experts, driven call by call, for tests of what it asks the host for.
//
//   Asking asking(path, 60);
//   asking.begin();
//   asking.answer(0.25);                  // every layer's question, with made-up sums
//   asking.hidden();                      // the residual rows
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu_fixture.h"

namespace tessera::testing {

inline double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(double{a[i]} - b[i]);
  return sum / static_cast<double>(a.size());
}

// A device with every other expert of each layer, and its steps call by call. `streamed`: the
// others lie in pinned memory too. `whole`: a layer with all of them. `device`: in place of one
// with these options.
class Asking {
 public:
  explicit Asking(const std::string& path, double wait_seconds, bool graphs = true,
                  bool streamed = false, int whole = -1, std::unique_ptr<Device> device = {}) {
    Result<Model> opened = Model::open(path);
    EXPECT_TRUE(opened);
    model_ = std::make_unique<Model>(*std::move(opened));
    const ModelSpec& spec = model_->spec();
    shard_ = {.end_layer = spec.n_layer(), .head = false, .max_rows = 4, .slots = 1};
    shard_.kv_pages.assign(kv_groups(spec).size(), 16);
    for (const LayerSpec& layer : spec.layers) {
      const bool all = static_cast<int>(shard_.experts.size()) == whole;
      LayerExperts& experts = shard_.experts.emplace_back();
      experts.streamed = streamed && layer.moe && !all;
      experts.spare = layer.moe && !all ? 1 : 0;
      for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
        experts.home.push_back(e % 2 == 0 || all ? ExpertHome::resident() : ExpertHome::host());
    }
    device_ = std::move(device);
    if (device_ == nullptr) open(wait_seconds, graphs);
    EXPECT_TRUE(device_->load(*model_, shard_, {}));
  }

  Device& device() { return *device_; }

  // Of two rows, up to where the device asks. `whole` is called ahead of layers with all experts,
  // as a step that is counted answers there.
  void begin(const std::function<void()>& whole = {}) {
    device_->reset_slot(0);
    device_->begin({.tokens = ids_, .sequences = {&sequence_, 1}, .logit_rows = {}});
    device_->embed();
    for (int l = 0; l < shard_.end_layer; ++l) {
      if (whole && !device_->posts_experts(l)) whole();
      device_->mixer(l);
      device_->route(l);
      EXPECT_EQ(device_->posts_experts(l), shard_.layer_lacking(l) != nullptr);
      device_->all_experts(l);
      device_->dense(l);
      device_->finish_ffn(l);
    }
  }
  // Answers with sums that are `value` in each column; how many layers have asked, where `first`
  // were answered before. `look` sees the pairs, `answered` what the experts were to read.
  int answer(double value, int first = 0,
             const std::function<void(int, std::span<const RoutedPair>)>& look = {},
             const std::function<void(int, const std::vector<float>&)>& answered = {}) {
    const auto n = static_cast<std::size_t>(model_->spec().n_embd);
    const std::vector<std::int32_t> rows = {0, 1};
    const std::vector<double> sums(rows.size() * n, value);
    int layers = first;
    for (int l = device_->next_post(); l >= 0; l = device_->next_post(), ++layers) {
      if (shard_.layer_lacking(layers) == nullptr) ++layers;  // asks for nothing
      EXPECT_EQ(l, layers);
      if (look) look(l, device_->routed_pairs());
      EXPECT_EQ(device_->routed_pairs().size(),
                rows.size() * static_cast<std::size_t>(model_->spec().layers.front().moe->n_used));
      const std::span<const float> read = device_->expert_rows(l);
      EXPECT_EQ(read.size(), sums.size());
      const std::vector<float> kept(read.begin(), read.end());
      device_->add_expert_sums(l, rows, sums);
      device_->answer_post(l);
      if (answered) answered(l, kept);
    }
    return layers;
  }
  std::vector<float> hidden() {
    std::vector<float> out(ids_.size() * static_cast<std::size_t>(model_->spec().n_embd));
    device_->read_hidden(out);
    return out;
  }
  int layers() const { return shard_.end_layer; }
  const Model& model() const { return *model_; }

 private:
  void open(double wait_seconds, bool graphs) {
    auto made = make_gpu_device(device_kind_name(test_gpu().name->kind),
                                {.index = *test_gpu().name->team,
                                 .load_threads = 2,
                                 .wait_seconds = wait_seconds,
                                 .graphs = graphs},
                                plugin_folder());
    EXPECT_TRUE(made);
    device_ = *std::move(made);
  }

  const std::vector<TokenId> ids_ = {5, 7};
  const std::vector<std::int32_t> page_ = {3};
  const std::vector<std::span<const std::int32_t>> pages_{page_};
  const SequenceRows sequence_{.n_rows = 2, .pages = pages_};
  std::unique_ptr<Model> model_;
  ShardLayout shard_;
  std::unique_ptr<Device> device_;
};

}  // namespace tessera::testing
