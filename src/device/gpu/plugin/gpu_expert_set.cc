#include "device/gpu/plugin/gpu_expert_set.h"

#include <algorithm>

#include "base/check.h"
#include "base/within_memory.h"

namespace tessera::gpu {

GpuExpertSet::~GpuExpertSet() {
  static_cast<void>(GPU(SetDevice)(options_.index));
  if (stream_.get() == nullptr) return;
  // A queue that does not answer is left to the driver with all that it uses.
  if (fault_ && !device_left() && finished_.get() != nullptr) {
    fault_ = wait_or_leave(stream_.get(), finished_, options_.longest_wait(), "what was under way");
    if (!fault_)
      host_.tell(LogLevel::warn, fmt::format("{}: {}; its memory is left to the driver", name_,
                                             fault_.error().message));
  }
  if (!fault_ && GPU(StreamQuery)(stream_.get()) != GPU(Success)) left_behind_.emplace();
}

Status GpuExpertSet::load(const Model& model, const ShardLayout& layout) {
  static_cast<void>(GPU(SetDevice)(options_.index));
  TESSERA_TRY(check_not_left(name_));
  return within_memory(
      [&] {
        spec_ = model.spec();
        layout_ = layout;
        return load_all(model);
      },
      name_.c_str());
}

Status GpuExpertSet::load_all(const Model& model) {
  TESSERA_TRY(gpu_supports(spec_));
  tensors_ = expert_slices(model.tensors(), layout_);
  const WeightLayout weights = weight_layout(tensors_, spec_, layout_);
  fail_allocation(options_.fail_allocation);
  TESSERA_ASSIGN(stream_, Stream::create());
  TESSERA_ASSIGN(finished_, Event::create());
  const std::int64_t bytes = carve_experts_scratch(spec_, layout_, weights, nullptr, scratch_);
  TESSERA_ASSIGN(memory_, DeviceBuffer::allocate(bytes, "scratch"));
  carve_experts_scratch(spec_, layout_, weights, memory_.data(), scratch_);
  TESSERA_ASSIGN(pinned_, PinnedBuffer::allocate(experts_staging_bytes(spec_, layout_), "jobs"));
  // NaN in every float: what reads memory that nothing has written shows.
  const LoadQueue queue{stream_.get(), finished_, options_.longest_wait()};
  TESSERA_TRY(queue.fill(memory_.data(), 0xff, bytes, "clearing"));
  TESSERA_ASSIGN(weights_, GpuWeights::load(model, layout_, weights,
                                            {.device = options_.index,
                                             .threads = options_.load_threads,
                                             .wait_seconds = options_.longest_wait(),
                                             .host = host_},
                                            {}));
  for (const LayerExperts& layer : layout_.experts) {
    const auto away = std::find_if(layer.home.begin(), layer.home.end(),
                                   [](ExpertHome home) { return !home.is_resident(); });
    // One that is not here costs nothing; any other is computed for nobody.
    filler_.push_back(
        away == layer.home.end() ? 0 : static_cast<std::int32_t>(away - layer.home.begin()));
  }
  return queue.wait("loading");
}

Status GpuExpertSet::compute(const GpuExpertsJob& job, std::span<float> sums) {
  TESSERA_TRY(fault_);
  static_cast<void>(GPU(SetDevice)(options_.index));
  Status done = within_memory([&] { return run(job, sums); }, "a job");
  if (!done) fault_ = Error(std::move(done).error()).in(name_);
  return fault_;
}

// Behind the rows.
void GpuExpertSet::fill_routing(const GpuExpertsJob& job) {
  const std::int32_t used = scratch_.used;
  auto* ids = reinterpret_cast<std::int32_t*>(pinned_.as<float>() + job.rows.size());
  auto* weights = reinterpret_cast<float*>(ids + job.n_rows * used);
  std::fill_n(ids, job.n_rows * used, filler_[as_size(job.layer - layout_.first_layer)]);
  std::fill_n(weights, job.n_rows * used, 0.0f);
  std::int32_t row = -1, slot = 0;
  for (const RoutedPair& pair : job.pairs) {
    slot = pair.row == row ? slot + 1 : 0;
    row = pair.row;
    CHECK(slot < used);
    ids[row * used + slot] = pair.expert;
    weights[row * used + slot] = pair.weight;
  }
}

FfnArgs GpuExpertSet::args(const GpuExpertsJob& job) const {
  const MoeSpec& moe = *spec_.layers[as_size(job.layer)].moe;
  const LayerWeights& w = weights_.layer(job.layer);
  FfnArgs args{.rows = job.n_rows, .n_embd = spec_.n_embd, .hidden = scratch_.rows};
  args.moe = {.n_expert = moe.n_expert,
              .n_used = scratch_.used,
              .n_ff = moe.n_ff,
              .activation = moe.activation,
              .router = moe.router,
              .shape = w.experts,
              .table = w.expert_table,
              .ids = reinterpret_cast<std::int32_t*>(scratch_.rows + job.rows.size()),
              .weights = scratch_.rows + job.rows.size() + job.n_rows * scratch_.used};
  args.pair_out = scratch_.pair_out;
  return args;
}

Status GpuExpertSet::run(const GpuExpertsJob& job, std::span<float> sums) {
  if (job.n_rows == 0) return {};
  auto* host = pinned_.as<float>();
  std::copy(job.rows.begin(), job.rows.end(), host);
  fill_routing(job);
  const std::size_t bytes =
      (job.rows.size() + as_size(2 * std::int64_t{job.n_rows} * scratch_.used)) * sizeof(float);
  TESSERA_TRY(status_of(
      GPU(MemcpyAsync)(scratch_.rows, host, bytes, GPU(MemcpyHostToDevice), stream_.get()),
      "rows of experts"));
  const Launch launch{.stream = stream_.get(),
                      .chained = traits_.chained && options_.chained,
                      .workspace = scratch_.workspace,
                      .workspace_bytes = as_size(scratch_.workspace_bytes),
                      .multiprocessors = traits_.multiprocessors,
                      .gemm = traits_.gemm};
  TESSERA_TRY(status_of(expert_sums(launch, args(job), scratch_.sums), "experts"));
  TESSERA_TRY(status_of(GPU(MemcpyAsync)(host, scratch_.sums, sums.size_bytes(),
                                         GPU(MemcpyDeviceToHost), stream_.get()),
                        "sums of experts"));
  TESSERA_TRY(wait_for(stream_.get(), finished_, options_.wait_seconds, "a job"));
  std::copy_n(host, sums.size(), sums.begin());
  return {};
}

}  // namespace tessera::gpu
