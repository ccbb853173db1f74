#include "device/gpu/plugin/expert_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "device/gpu/kernels/sizes.h"
#include "device/gpu/plugin/pack_experts.h"

namespace tessera::gpu {

Result<ExpertStream> ExpertStream::load(const Model& model, const ShardLayout& shard,
                                        const WeightLayout& layout, std::byte* arena,
                                        const LoadOptions& options, const LoadProgress& progress) {
  ExpertStream stream;
  if (layout.stream.layers.empty()) return stream;
  TESSERA_TRY(stream.allocate(layout, arena));
  std::vector<PackedExperts> packed;
  for (std::size_t l = 0; l < stream.layers_.size(); ++l) {
    const Layer& layer = stream.layers_[l];
    if (!layer.experts.empty())
      packed.push_back(
          {.layer = static_cast<int>(l), .experts = layer.experts, .to = layer.packed.as()});
  }
  TESSERA_TRY(pack_experts(model, shard, layout, packed, options, progress));
  TESSERA_TRY(stream.measure(options.wait_seconds));
  return stream;
}

Status ExpertStream::allocate(const WeightLayout& layout, std::byte* arena) {
  const StreamLayout& planned = layout.stream;
  TESSERA_ASSIGN(queue_, Stream::create());
  TESSERA_ASSIGN(brought_, Event::create());
  group_slots_ = planned.group_slots;
  table_ = reinterpret_cast<const std::byte**>(arena + planned.table_offset);
  for (int g = 0; g < planned.groups; ++g) {
    Group& group = groups_.emplace_back();
    group.slots = arena + planned.offset + g * planned.group_bytes;
    TESSERA_ASSIGN(group.filled, Event::create());
    TESSERA_ASSIGN(group.used, Event::create());
    group.experts.reserve(static_cast<std::size_t>(group_slots_));
  }
  for (std::size_t l = 0; l < planned.layers.size(); ++l) {
    Layer& layer = layers_.emplace_back();
    const StreamLayout::Layer& from = planned.layers[l];
    if (from.experts.empty()) continue;
    const auto count = static_cast<std::int64_t>(from.experts.size());
    Result<PinnedBuffer> packed = PinnedBuffer::allocate(count * from.expert_bytes, "experts");
    if (!packed) continue;  // the host computes them
    layer.packed = *std::move(packed);
    layer.experts = from.experts;
    layer.expert_bytes = from.expert_bytes;
    const auto all = static_cast<std::size_t>(layout.experts[l].count);
    missing_.reserve(all);
    layer.has.assign(all, 0);
    layer.index.assign(all, -1);
    for (std::size_t i = 0; i < layer.experts.size(); ++i) {
      const auto expert = static_cast<std::size_t>(layer.experts[i]);
      layer.has[expert] = 1;
      layer.index[expert] = static_cast<std::int32_t>(i);
    }
  }
  return {};
}

// The link's speed, by the experts of one group.
Status ExpertStream::measure(double wait_seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 3;
  const auto found = std::find_if(layers_.begin(), layers_.end(),
                                  [](const Layer& layer) { return !layer.experts.empty(); });
  if (found == layers_.end()) return {};
  const std::int64_t count =
      std::min<std::int64_t>(group_slots_, static_cast<std::int64_t>(found->experts.size()));
  const std::int64_t bytes = count * found->expert_bytes;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = Clock::now();
    TESSERA_TRY(status_of(
        GPU(MemcpyAsync)(groups_.front().slots, found->packed.as(), static_cast<std::size_t>(bytes),
                         GPU(MemcpyHostToDevice), queue_.get()),
        "measuring the link"));
    TESSERA_TRY(wait_or_leave(queue_.get(), brought_, wait_seconds, "measuring the link"));
    const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    const double us_per_byte = took.count() / static_cast<double>(bytes);
    us_per_byte_ = i == 0 ? us_per_byte : std::min(us_per_byte_, us_per_byte);
  }
  return {};
}

std::span<const std::uint8_t> ExpertStream::experts(int layer) const {
  if (layers_.empty()) return {};
  return layers_[static_cast<std::size_t>(layer)].has;
}

double ExpertStream::expert_us(int layer) const {
  return us_per_byte_ * static_cast<double>(layers_[static_cast<std::size_t>(layer)].expert_bytes);
}

std::vector<const std::byte*> ExpertStream::places(int layer) const {
  std::vector<const std::byte*> places(experts(layer).size(), nullptr);
  for (std::size_t e = 0; e < places.size(); ++e) {
    const Layer& of = layers_[static_cast<std::size_t>(layer)];
    if (of.has[e] != 0) places[e] = of.packed.as() + of.index[e] * of.expert_bytes;
  }
  return places;
}

Status ExpertStream::run(int layer, std::span<const std::int32_t> pairs, GpuStream queue,
                         const Compute& compute) {
  if (n_filled_ > 0 && filled(0).layer != layer) n_filled_ = 0;
  missing_.clear();
  for (const std::int32_t expert : layers_[static_cast<std::size_t>(layer)].experts)
    if (pairs[static_cast<std::size_t>(expert)] > 0 && !here(expert)) missing_.push_back(expert);
  std::span<const std::int32_t> left = missing_;
  while (n_filled_ > 0 || !left.empty()) {
    TESSERA_TRY(fill_free(layer, left));
    TESSERA_TRY(use(filled(0), pairs, queue, compute));
    --n_filled_;
  }
  return prefetch(layer);
}

bool ExpertStream::here(std::int32_t expert) {
  for (std::size_t i = 0; i < n_filled_; ++i) {
    const std::vector<std::int32_t>& group = filled(i).experts;
    if (std::find(group.begin(), group.end(), expert) != group.end()) return true;
  }
  return false;
}

Status ExpertStream::bring(int layer, int expert, std::byte* place, const Event& free) {
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  TESSERA_TRY(wait_for(free));
  const std::byte* from =
      of.packed.as() + of.index[static_cast<std::size_t>(expert)] * of.expert_bytes;
  TESSERA_TRY(status_of(GPU(MemcpyAsync)(place, from, static_cast<std::size_t>(of.expert_bytes),
                                         GPU(MemcpyHostToDevice), queue_.get()),
                        "moving an expert"));
  return status_of(GPU(EventRecord)(brought_.get(), queue_.get()), "moving an expert");
}

Status ExpertStream::wait_for(const Event& event) {
  return status_of(GPU(StreamWaitEvent)(queue_.get(), event.get(), 0), "an expert's place");
}

// As many groups as are free, with experts from the front of `left`.
Status ExpertStream::fill_free(int layer, std::span<const std::int32_t>& left) {
  while (n_filled_ < groups_.size() && !left.empty()) {
    const std::size_t n = std::min(left.size(), static_cast<std::size_t>(group_slots_));
    TESSERA_TRY(fill(layer, left.first(n)));
    left = left.subspan(n);
  }
  return {};
}

// Experts that lie one after the other on the host are one copy.
Status ExpertStream::fill(int layer, std::span<const std::int32_t> experts) {
  const Layer& from = layers_[static_cast<std::size_t>(layer)];
  Group& group = groups_[next_];
  TESSERA_TRY(wait_for(group.used));
  const auto index = [&](std::size_t i) {
    return from.index[static_cast<std::size_t>(experts[i])];
  };
  for (std::size_t begin = 0, end = 0; begin < experts.size(); begin = end) {
    for (end = begin + 1; end < experts.size() && index(end) == index(end - 1) + 1;) ++end;
    const std::int64_t bytes = static_cast<std::int64_t>(end - begin) * from.expert_bytes;
    TESSERA_TRY(status_of(
        GPU(MemcpyAsync)(group.slots + static_cast<std::int64_t>(begin) * from.expert_bytes,
                         from.packed.as() + index(begin) * from.expert_bytes,
                         static_cast<std::size_t>(bytes), GPU(MemcpyHostToDevice), queue_.get()),
        "experts on their way"));
    streamed_.bytes += bytes;
  }
  streamed_.experts += static_cast<std::int64_t>(experts.size());
  group.layer = layer;
  group.experts.assign(experts.begin(), experts.end());
  next_ = (next_ + 1) % groups_.size();
  ++n_filled_;
  return status_of(GPU(EventRecord)(group.filled.get(), queue_.get()), "experts on their way");
}

Status ExpertStream::use(const Group& group, std::span<const std::int32_t> pairs, GpuStream queue,
                         const Compute& compute) {
  const Layer& layer = layers_[static_cast<std::size_t>(group.layer)];
  StreamedGroup args{.table = {.table = table_,
                               .n_expert = static_cast<int>(layer.has.size()),
                               .base = group.slots,
                               .stride = layer.expert_bytes,
                               .n = static_cast<int>(group.experts.size())}};
  for (std::size_t i = 0; i < group.experts.size(); ++i) {
    const std::int32_t own = pairs[static_cast<std::size_t>(group.experts[i])];
    args.table.experts[i] = own > 0 ? group.experts[i] : -1;
    args.experts += own > 0 ? 1 : 0;
    args.pairs += own;
  }
  if (args.pairs == 0) return {};
  TESSERA_TRY(status_of(GPU(StreamWaitEvent)(queue, group.filled.get(), 0), "streamed experts"));
  TESSERA_TRY(compute(args));
  return status_of(GPU(EventRecord)(group.used.get(), queue), "streamed experts");
}

Status ExpertStream::prefetch(int after) {
  for (auto l = static_cast<std::size_t>(after) + 1; l < layers_.size(); ++l) {
    std::span<const std::int32_t> experts = layers_[l].experts;
    if (experts.empty()) continue;
    return fill_free(static_cast<int>(l), experts);
  }
  return {};
}

}  // namespace tessera::gpu
