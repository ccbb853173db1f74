#include "plan/footprint.h"

#include "device/cpu/cpu_device.h"
#include "device/gpu/gpu_layout.h"

namespace tessera {

Footprint footprint(const Model& model, const ShardLayout& layout, DeviceKind kind, int threads) {
  const auto taken = [](const auto& bytes) {
    return Footprint{bytes.weights, bytes.kv, bytes.recurrent, bytes.scratch};
  };
  return kind == DeviceKind::cpu ? taken(cpu_footprint(model, layout, threads))
                                 : taken(gpu_footprint(model, layout));
}

Status device_supports(DeviceKind kind, const ModelSpec& spec) {
  return kind == DeviceKind::cpu ? cpu_supports(spec) : gpu_supports(spec);
}

}  // namespace tessera
