#include "experts/expert_holder.h"

#include <utility>

#include "device/gpu/plugin.h"
#include "experts/expert_worker.h"

namespace tessera {
namespace {

class CpuHolder final : public ExpertHolder {
 public:
  explicit CpuHolder(std::unique_ptr<ExpertSet> set) : set_(std::move(set)) {}
  const ExpertSetLayout& layout() const override { return set_->layout(); }
  Status check(const ExpertJob& job) const override { return set_->check(job); }
  Status compute(const ExpertJob& job, std::span<double> sums) override {
    set_->compute(job, sums);
    return {};
  }

 private:
  std::unique_ptr<ExpertSet> set_;
};

class GpuHolder final : public ExpertHolder {
 public:
  GpuHolder(const ModelSpec& spec, ExpertSetLayout layout, std::unique_ptr<GpuExperts> experts)
      : spec_(spec), layout_(std::move(layout)), experts_(std::move(experts)) {
    sums_.resize(static_cast<std::size_t>(layout_.max_rows) *
                 static_cast<std::size_t>(spec.n_embd));
  }
  const ExpertSetLayout& layout() const override { return layout_; }

  // Its kernels have a place for each expert that a row may choose.
  Status check(const ExpertJob& job) const override {
    TESSERA_TRY(check_expert_job(layout_, spec_.n_embd, job));
    const auto most = static_cast<std::size_t>(most_experts_used(spec_));
    for (std::size_t i = most; i < job.pairs.size(); ++i)
      if (job.pairs[i].row == job.pairs[i - most].row)
        return Error::make(ErrorCode::invalid, "row {} of a job has more than {} pairs",
                           job.pairs[i].row, most);
    return {};
  }

  Status compute(const ExpertJob& job, std::span<double> sums) override {
    const std::span<float> own = std::span(sums_).first(sums.size());
    TESSERA_TRY(experts_->compute(
        {.layer = job.layer, .n_rows = job.n_rows, .rows = job.rows, .pairs = job.pairs}, own));
    std::copy(own.begin(), own.end(), sums.begin());
    return {};
  }

 private:
  const ModelSpec& spec_;
  ExpertSetLayout layout_;
  std::unique_ptr<GpuExperts> experts_;
  std::vector<float> sums_;
};

}  // namespace

Result<std::unique_ptr<ExpertHolder>> load_experts(const Model& model,
                                                   const ExpertSetLayout& layout,
                                                   const ExpertHolderOptions& options) {
  if (options.kind == DeviceKind::cpu) {
    auto team = std::make_shared<ThreadTeam>(
        ThreadTeamOptions{.threads = options.threads, .cpus = options.cpus});
    TESSERA_ASSIGN(auto set,
                   ExpertSet::load(model, layout, {.team = team, .isa = options.isa}, {}));
    return std::unique_ptr<ExpertHolder>(std::make_unique<CpuHolder>(std::move(set)));
  }
  TESSERA_ASSIGN(auto experts, make_gpu_experts(device_kind_name(options.kind),
                                                {.index = options.number,
                                                 .load_threads = options.threads,
                                                 .wait_seconds = options.gpu_wait_s,
                                                 .chained = options.gpu_chained},
                                                options.gpu_plugins));
  TESSERA_TRY(experts->load(model, gpu_experts_layout(layout)));
  return std::unique_ptr<ExpertHolder>(
      std::make_unique<GpuHolder>(model.spec(), layout, std::move(experts)));
}

}  // namespace tessera
