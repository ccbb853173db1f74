// GpuDevice: routing that the host reads, and experts away from the device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "base/within_memory.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {
namespace {

// In several chains: a device waits for it.
double sum_of_squares(std::span<const float> x) {
  constexpr std::size_t kChains = 8;
  double sums[kChains] = {};
  for (std::size_t i = 0; i < x.size(); i += kChains)
    for (std::size_t j = 0; j < std::min(kChains, x.size() - i); ++j)
      sums[j] += double{x[i + j]} * x[i + j];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

}  // namespace

std::span<const RoutedPair> GpuDevice::routed_pairs() {
  if (answering_) return pairs_;
  const LayerSpec& layer = spec_.layers[as_size(std::max(0, routing_.layer))];
  pairs_.clear();
  if (routing_.layer < 0 || !layer.moe) return {};
  if (!routing_.enqueued) note({Block::route, routing_.layer});
  routing_.enqueued = true;
  flush();
  use();
  const int used = layer.moe->n_used;
  const std::size_t count = as_size(shape_.rows) * as_size(used);
  auto* ids = host_routing_.as<std::int32_t>();
  auto* weights = reinterpret_cast<float*>(ids + count);
  if (!lost())
    check(status_of(GPU(MemcpyAsync)(ids, scratch_.ids, count * sizeof(*ids),
                                     GPU(MemcpyDeviceToHost), stream_.get()),
                    "routing"));
  if (!lost()) check(fetch(weights, scratch_.weights, count * sizeof(*weights)));
  if (lost()) std::memset(ids, 0, 2 * count * sizeof(*ids));
  return take_pairs(ids, weights);
}

// Of the layer under way.
std::span<const RoutedPair> GpuDevice::take_pairs(const std::int32_t* ids, const float* weights) {
  const MoeSpec& moe = *spec_.layers[as_size(routing_.layer)].moe;
  pairs_.clear();
  for (std::int32_t i = 0; i < shape_.rows * moe.n_used; ++i) {
    read_.ahead += ids[i] >= 2 * moe.n_expert ? 1 : 0;
    pairs_.push_back({.row = i / moe.n_used,
                      .expert = ids[i] % moe.n_expert,
                      .slot = i % moe.n_used,
                      .weight = weights[i],
                      .fetched = ids[i] >= moe.n_expert});
  }
  return pairs_;
}

// --- Experts elsewhere ---

Status GpuDevice::prepare_experts(const Model& model) {
  if (layout_.experts.empty()) return {};
  if (!gpu_experts_may_leave(spec_))
    return Error::make(ErrorCode::unsupported,
                       "{}: experts of a model with norms behind them cannot be away from a GPU",
                       name_);
  model_ = &model;
  const std::int64_t floats = std::int64_t{layout_.max_rows} * spec_.n_embd;
  const GpuStaging staging = gpu_staging(spec_, layout_);
  const std::int64_t bytes = staging.expert_rows;
  TESSERA_ASSIGN(host_rows_, PinnedBuffer::allocate(bytes, "rows for experts elsewhere"));
  TESSERA_ASSIGN(host_sums_, PinnedBuffer::allocate(bytes, "sums of experts elsewhere"));
  TESSERA_ASSIGN(posts_, ExpertPosts::create(posts_layout(spec_, layout_), options_.wait_seconds));
  TESSERA_ASSIGN(side_, SideQueue::create());
  TESSERA_ASSIGN(vacated_, Event::create());
  if (staging.moves > 0) TESSERA_TRY(weights_.prepare_moves(load_options()));
  std::int64_t used = 0;
  for (int l = layout_.first_layer; l < layout_.end_layer; ++l) {
    const LayerSpec& layer = spec_.layers[as_size(l)];
    std::vector<float>& norm = expert_norms_.emplace_back();
    std::vector<bool>& here = here_.emplace_back();
    const LayerExperts* experts = layout_.layer_lacking(l);
    lacks_.push_back(experts != nullptr);
    if (!layer.moe || experts == nullptr) continue;
    used = std::max<std::int64_t>(used, layer.moe->n_used);
    const TensorRole role = layer.moe->own_norm ? TensorRole::moe_norm : TensorRole::ffn_norm;
    norm.resize(as_size(spec_.n_embd));
    for (const TensorSlice& slice : model.tensors())
      if (slice.role == role && slice.layer == l)
        dequantize_row(slice.type, slice.data, spec_.n_embd, norm.data());
    for (const ExpertHome home : experts->home) here.push_back(home.is_resident());
  }
  foreseen_.reserve(as_size(kDecodeRows * used));
  // What is not computed here counts with the weight zero, and must be finite.
  return load_queue().fill(scratch_.pair_out, 0, floats * used * std::int64_t{sizeof(float)},
                           "clearing");
}

std::span<const float> GpuDevice::expert_rows(int layer) {
  const std::size_t n = as_size(spec_.n_embd), count = as_size(shape_.rows) * n;
  auto* rows = answering_ ? posts_.x() : host_rows_.as<float>();
  if (!answering_) {
    flush();
    use();
    if (!lost()) check(fetch(rows, scratch_.hidden, hidden_bytes()));
    if (lost()) std::fill_n(rows, count, 0.0f);
  }
  const std::vector<float>& norm = expert_norms_[as_size(layer - layout_.first_layer)];
  for (int row = 0; row < shape_.rows; ++row) {
    float* x = rows + as_size(row) * n;
    const auto factor = static_cast<float>(
        1.0 / std::sqrt(sum_of_squares({x, n}) / static_cast<double>(n) + spec_.norm_eps));
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor * norm[i];
  }
  return {rows, count};
}

void GpuDevice::add_expert_sums(int, std::span<const std::int32_t> rows,
                                std::span<const double> sums) {
  const std::size_t n = as_size(spec_.n_embd);
  auto* all = answering_ ? posts_.sums() : host_sums_.as<float>();
  if (!sums_given_) std::fill_n(all, as_size(shape_.rows) * n, 0.0f);
  sums_given_ = true;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t c = 0; c < n; ++c) {
      float& sum = all[as_size(rows[i]) * n + c];
      sum = static_cast<float>(sum + sums[i * n + c]);
    }
}

void GpuDevice::begin_branches(int layer) {
  if (routing_.branches) return;
  note({Block::ffn_branches, layer});
  routing_.branches = true;
}

void GpuDevice::dense(int layer) {
  if (answering_ || !lacks_experts(layer) || !routing_.enqueued) return;
  begin_branches(layer);
  flush();
}

// What is copied here stays until the next layer's pairs were read from the queue. Where nothing is
// masked there is no copy: it would wait for those of experts that cross for the next layer.
void GpuDevice::finish_with_sums(int layer) {
  if (!routing_.enqueued || pairs_.empty()) routed_pairs();
  use();
  const std::vector<bool>& resident = here_[as_size(layer - layout_.first_layer)];
  const auto here = [&](std::int32_t expert) {
    return resident[as_size(expert)] || (!streamed_.empty() && streamed_[as_size(expert)] > 0);
  };
  auto* weights = reinterpret_cast<float*>(host_routing_.as<std::int32_t>() + pairs_.size());
  bool all_here = true;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    weights[i] = here(pairs_[i].expert) ? pairs_[i].weight : 0.0f;
    all_here &= here(pairs_[i].expert);
  }
  const auto send = [&](void* to, const void* from, std::size_t bytes) {
    if (!lost())
      check(status_of(GPU(MemcpyAsync)(to, from, bytes, GPU(MemcpyHostToDevice), stream_.get()),
                      "experts elsewhere"));
  };
  if (!all_here) send(scratch_.weights, weights, pairs_.size() * sizeof(float));
  if (sums_given_) send(scratch_.branch, host_sums_.as<float>(), hidden_bytes());
  begin_branches(layer);
  note({Block::ffn_finish, layer});
  if (sums_given_) note({Block::add_branch, layer});
}

// --- Experts that cross for a step ---

// Where the host's experts lie, for kernels to read them.
Status GpuDevice::link_experts(int layer) {
  const std::vector<const std::byte*> places = streams_.places(layer - layout_.first_layer);
  return places.empty() ? Status{} : weights_.link_experts(layer, places, load_queue());
}

StreamedExperts GpuDevice::streamed() const {
  const StreamedExperts& copied = streams_.streamed();
  return {.experts = copied.experts + read_.experts,
          .bytes = copied.bytes + read_.bytes,
          .ahead = read_.ahead};
}

std::span<const std::uint8_t> GpuDevice::streamable(int layer) {
  return streams_.experts(layer - layout_.first_layer);
}

double GpuDevice::stream_us(int layer, int experts) {
  return experts * streams_.expert_us(layer - layout_.first_layer);
}

void GpuDevice::stream_experts(int layer, std::span<const RoutedPair> pairs) {
  if (answering_) {
    const auto n = static_cast<std::int64_t>(pairs.size());
    read_.experts += n;
    read_.bytes += n * weights_.layer(layer).experts.bytes;
    return;
  }
  begin_branches(layer);
  flush();
  use();
  streamed_.assign(streamable(layer).size(), 0);
  for (const RoutedPair& pair : pairs) ++streamed_[as_size(pair.expert)];
  if (lost()) return;
  const auto compute = [&](const StreamedGroup& group) {
    return step_->stream(layer, shape_, group);
  };
  const auto run = [&] {
    return streams_.run(layer - layout_.first_layer, streamed_, stream_.get(), compute);
  };
  check(within_memory(run, "a step"));
}

}  // namespace tessera::gpu
