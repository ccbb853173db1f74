// GpuDevice: loading. All that a device has is allocated here, and filled through queues that are
// waited for no longer than GpuDeviceOptions::longest_wait().
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/within_memory.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {
namespace {

// Of the host's longest wait twice as much, and a second: it gives up the GPU that is late first,
// and the one that waits for that has not ended with an error, which a process does not survive.
std::int64_t most_ns(double wait_seconds) {
  constexpr double kLongest = 1e9;  // a year is less
  return static_cast<std::int64_t>(1e9 + 2e9 * std::clamp(wait_seconds, 0.0, kLongest));
}

}  // namespace

Status GpuDevice::load(const Model& model, const ShardLayout& layout,
                       const LoadProgress& progress) {
  CHECK(step_ == nullptr, "a device loads once");
  use();
  TESSERA_TRY(check_not_left(name_));
  return within_memory(
      [&] {
        spec_ = model.spec();
        layout_ = layout;
        return load_all(model, progress);
      },
      name_.c_str());
}

Status GpuDevice::load_all(const Model& model, const LoadProgress& progress) {
  TESSERA_TRY(gpu_supports(spec_));
  const WeightLayout weights = weight_layout(model.tensors(), spec_, layout_);
  fail_allocation(options_.fail_allocation);
  TESSERA_TRY(allocate(weights));
  TESSERA_TRY(load_weights(model, weights, progress));
  TESSERA_TRY(upload_constants());
  TESSERA_TRY(prepare_experts(model));
  reserve();
  std::vector<std::byte*> pools;
  for (const DeviceBuffer& pool : pools_) pools.push_back(pool.data());
  step_ = std::make_unique<GpuStep>(StepMemory{.spec = spec_,
                                               .shard = layout_,
                                               .weights = weights_,
                                               .state = state_,
                                               .scratch = scratch_,
                                               .posts = posts_,
                                               .side = side_,
                                               .pools = std::move(pools),
                                               .slots = reinterpret_cast<float*>(slots_.data()),
                                               .most_ns = most_ns(options_.wait_seconds),
                                               .chosen = host_chosen_.as<ChosenRow>()},
                                    Launch{.stream = stream_.get(),
                                           .chained = traits_.chained && options_.chained,
                                           .workspace = scratch_.workspace,
                                           .workspace_bytes = as_size(scratch_.workspace_bytes),
                                           .multiprocessors = traits_.multiprocessors,
                                           .gemm = traits_.gemm});
  if (step_->may_run()) TESSERA_TRY(begin_runs());
  return load_queue().wait("loading");
}

// What a step notes.
void GpuDevice::reserve() {
  constexpr std::size_t kMostCalls = 8;  // of a layer, and of what is around the layers
  const std::size_t layers = as_size(layout_.end_layer - layout_.first_layer);
  program_.reserve((layers + 1) * kMostCalls);
  posting_.reserve(layers);
  std::size_t experts = 0;
  for (int l = 0; l < static_cast<int>(layers); ++l)
    experts = std::max(experts, streams_.experts(l).size());
  streamed_.reserve(experts);
}

Status GpuDevice::begin_runs() {
  if (!order_.sound()) {
    host_.tell(
        LogLevel::warn,
        fmt::format("{}: a step of this process never ended on this GPU; layers go one by one",
                    name_));
    return {};
  }
  TESSERA_TRY(step_->prepare_runs(load_queue()));
  const int layers = layout_.end_layer - layout_.first_layer, dense = step_->dense_layers();
  const int run = dense > 0 ? dense : step_->run_layers();
  if (run == 0) return {};
  const int rows = std::min(kDecodeRows, kMostRunRows * layout_.rows_abreast);
  // Of parts of the model, which are timed or take turns, only what falls short is news.
  const bool part = layers < static_cast<int>(spec_.layers.size());
  host_.tell(part && run == layers ? LogLevel::debug : LogLevel::info,
             fmt::format("{}: {} of {} layers run as one kernel where a step has {}", name_, run,
                         layers, dense > 0 ? "one row" : fmt::format("up to {} rows", rows)));
  return {};
}

// First what lies here, then what is to cross.
Status GpuDevice::load_weights(const Model& model, const WeightLayout& layout,
                               const LoadProgress& progress) {
  const LoadOptions options = load_options();
  const std::int64_t later = layout.stream.host_bytes;
  std::int64_t here = 0;
  LoadProgress first, second;
  if (progress) {
    first = [&](std::int64_t done, std::int64_t total) {
      here = total;
      return progress(done, total + later);
    };
    second = [&](std::int64_t done, std::int64_t) { return progress(here + done, here + later); };
  }
  TESSERA_ASSIGN(weights_, GpuWeights::load(model, layout_, layout, options, first));
  TESSERA_ASSIGN(streams_,
                 ExpertStream::load(model, layout_, layout, weights_.arena(), options, second));
  for (int l = layout_.first_layer; l < layout_.end_layer; ++l) TESSERA_TRY(link_experts(l));
  return {};
}

Status GpuDevice::allocate(const WeightLayout& weights) {
  TESSERA_ASSIGN(stream_, Stream::create());
  TESSERA_ASSIGN(order_, StepOrder::join(options_.index));
  TESSERA_ASSIGN(finished_, Event::create());
  TESSERA_ASSIGN(hidden_sent_, Event::create());
  for (Event& event : chosen_) {
    TESSERA_ASSIGN(event, Event::create());
  }
  kept_.resize(as_size(layout_.kept_pieces + kMostUnderWay));
  for (Event& event : kept_) {
    TESSERA_ASSIGN(event, Event::create());
  }
  state_ = state_layout(spec_, layout_);
  const std::int64_t bytes = carve_scratch(spec_, layout_, weights, nullptr, scratch_);
  TESSERA_ASSIGN(scratch_memory_, DeviceBuffer::allocate(bytes, "scratch"));
  carve_scratch(spec_, layout_, weights, scratch_memory_.data(), scratch_);
  for (std::size_t g = 0; g < state_.page_bytes.size(); ++g) {
    TESSERA_ASSIGN(DeviceBuffer pool,
                   DeviceBuffer::allocate(state_.page_bytes[g] * layout_.kv_pages[g], "KV pages"));
    pools_.push_back(std::move(pool));
  }
  TESSERA_ASSIGN(slots_, DeviceBuffer::allocate(state_.slot_bytes(layout_), "recurrent state"));
  const auto fill = [&](const DeviceBuffer& buffer, int byte) {
    return load_queue().fill(buffer.data(), byte, buffer.bytes(), "clearing");
  };
  // NaN in every float: what reads memory that nothing has written shows.
  constexpr int kPoison = 0xff;
  TESSERA_TRY(fill(scratch_memory_, kPoison));
  TESSERA_TRY(fill(slots_, 0));
  for (const DeviceBuffer& pool : pools_) TESSERA_TRY(fill(pool, kPoison));

  const GpuStaging staging = gpu_staging(spec_, layout_);
  TESSERA_ASSIGN(host_logits_, PinnedBuffer::allocate(staging.logits, "logits"));
  TESSERA_ASSIGN(host_chosen_, PinnedBuffer::allocate(staging.chosen, "tokens"));
  TESSERA_ASSIGN(host_hidden_, PinnedBuffer::allocate(staging.hidden, "residual rows"));
  TESSERA_ASSIGN(host_routing_, PinnedBuffer::allocate(staging.routing, "routing"));
  pairs_.reserve(as_size(staging.routing) / (2 * sizeof(float)));
  TESSERA_ASSIGN(StepInputs inputs, StepInputs::create(staging.inputs, options_.wait_seconds));
  inputs_ = std::make_unique<StepInputs>(std::move(inputs));
  return {};
}

Status GpuDevice::upload_constants() {
  const auto send = [&](void* to, const void* from, std::size_t bytes) {
    if (to == nullptr) return Status{};
    return load_queue().send(to, from, bytes, "constants");
  };
  for (std::size_t i = 0; i < scratch_.ropes.size(); ++i) {
    const std::vector<float>& from = scratch_.ropes[i]->inv_freq;
    TESSERA_TRY(send(scratch_.inv_freq[i], from.data(), from.size() * sizeof(float)));
  }
  return send(scratch_.banned, spec_.suppressed_tokens.data(),
              spec_.suppressed_tokens.size() * sizeof(TokenId));
}

}  // namespace tessera::gpu
