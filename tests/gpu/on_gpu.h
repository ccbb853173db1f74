// Models and shards on the GPU that is tested.
#pragma once

#include <memory>

#include "tests/gpu/gpu_fixture.h"
#include "tests/model_runner.h"

namespace tessera::testing {

inline RunnerOptions on_gpu() {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.gpu_wait_s = 600;  // a step of one that is emulated takes the processor's time
  return options;
}

inline GpuDeviceOptions device_options() {
  return {.index = *test_gpu().name->team, .load_threads = 2};
}

inline Result<std::unique_ptr<Device>> open_gpu(const GpuDeviceOptions& options) {
  return make_gpu_device(device_kind_name(test_gpu().name->kind), options, plugin_folder());
}

inline ShardLayout small_shard(const ModelSpec& spec) {
  ShardLayout shard{.end_layer = spec.n_layer(), .max_rows = 32, .max_logit_rows = 4, .slots = 2};
  shard.kv_pages.assign(kv_groups(spec).size(), 16);
  return shard;
}

}  // namespace tessera::testing
