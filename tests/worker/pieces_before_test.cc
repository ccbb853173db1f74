// Layers in a worker behind a shard whose pieces fail alone, for want of experts that are required.
#include <gtest/gtest.h>

#include <atomic>

#include "experts/host_executor.h"
#include "tests/worker/layer_rig.h"

namespace tessera::testing {
namespace {

// Of this process, and required.
class RefusingExperts final : public ExpertExecutor {
 public:
  RefusingExperts(std::unique_ptr<ExpertExecutor> inner, const std::atomic<bool>& refuses)
      : inner_(std::move(inner)), refuses_(refuses) {}
  std::string name() const override { return "worker:9"; }
  ExpertLimits limits() const override { return inner_->limits(); }
  Status submit(const ExpertJob& job) override {
    if (refuses_) return Error::make(ErrorCode::unavailable, "not now");
    return inner_->submit(job);
  }
  Result<ExpertReport> collect(std::span<double> sums) override { return inner_->collect(sums); }
  void drop() override { inner_->drop(); }

 private:
  std::unique_ptr<ExpertExecutor> inner_;
  const std::atomic<bool>& refuses_;
};

// Each of them has a reset that its layers must hear of, and no rows.
TEST(PiecesBefore, ThatFailCostAWorkerNothing) {
  std::atomic<bool> refuses = false;
  LayerRig rig(Link::shared);
  rig.options.parallel = 2;
  rig.options.context = 400;
  rig.options.expert_resident = 50.0;
  rig.options.expert_workers = 1;
  rig.options.device.experts.options.required = true;
  rig.options.device.experts.workers = [&refuses](const ShardLayout& layout) {
    static const Result<Model> model = Model::open(model_path());
    auto inner = make_host_executor(*model, {.first_layer = layout.first_layer,
                                             .end_layer = layout.end_layer,
                                             .max_rows = layout.max_rows});
    EXPECT_TRUE(inner);
    std::vector<std::unique_ptr<ExpertExecutor>> workers;
    workers.push_back(std::make_unique<RefusingExperts>(*std::move(inner), refuses));
    return workers;
  };
  rig.load();
  const int pid = rig.pid();
  ASSERT_TRUE(rig.step(20, true));
  ModelRunner::Sequence kept = std::move(rig.sequence);
  refuses = true;
  for (int i = 0; i < 200; ++i) {
    rig.sequence = {};
    rig.sequence = rig.runner->start(200);
    ASSERT_FALSE(rig.step(5, true));
    ASSERT_TRUE(rig.runner->pipeline().keeps_state()) << i;
  }
  refuses = false;
  rig.sequence = std::move(kept);
  EXPECT_TRUE(rig.step(20, true)) << "its state is there";
  rig.sequence = {};
  EXPECT_TRUE(rig.runner->logits(question(), 64) == plain_logits());
  EXPECT_EQ(rig.pid(), pid);
}

}  // namespace
}  // namespace tessera::testing
