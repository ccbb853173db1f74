// The layers of a model are measured in a worker as they are in this process.
#include <gtest/gtest.h>

#include "pipeline/measure_layers.h"
#include "tests/worker/layer_topology.h"

namespace tessera::testing {
namespace {

TEST(WorkerLayerTimes, AreMeasuredThroughTheSameInterface) {
  const std::string path = TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf";
  const Result<Model> model = Model::open(path);
  ASSERT_TRUE(model) << model.error().message;
  for (const auto transport : {worker::TransportChoice::shared, worker::TransportChoice::stream}) {
    LayerWorkers workers{.transport = transport};
    int opened = 0;
    const ShardMaker open = [&](const ShardLayout& layout) -> Result<std::unique_ptr<Shard>> {
      ++opened;
      const ShardPlan shard{.device = "worker:0", .remote = true, .threads = 1, .layout = layout};
      TESSERA_ASSIGN(auto remote,
                     worker::RemoteShard::create(site_of(workers, path, shard, {}),
                                                 {.layout = layout, .context = layout.context},
                                                 *model, workers.metrics));
      return std::unique_ptr<Shard>(std::move(remote));
    };
    const Result<MeasuredLayers> times =
        measure_layers(*model, {.piece_rows = 40, .head = true}, open);
    ASSERT_TRUE(times) << times.error().message;
    EXPECT_TRUE(usable(times->times, model->spec().n_layer()));
    EXPECT_GT(opened, 1);
  }
}

}  // namespace
}  // namespace tessera::testing
