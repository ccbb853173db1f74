#include "plan/footprint.h"

#include "device/cpu/cpu_device.h"
#include "device/gpu/gpu_layout.h"
#include "experts/offload_bytes.h"
#include "plan/plan.h"

namespace tessera {

Footprint footprint(const Model& model, const ShardLayout& layout, DeviceKind kind, int threads) {
  const auto taken = [](const auto& bytes) {
    return Footprint{bytes.weights, bytes.kv, bytes.recurrent, bytes.scratch};
  };
  return kind == DeviceKind::cpu ? taken(cpu_footprint(model, layout, threads))
                                 : taken(gpu_footprint(model, layout));
}

std::int64_t cpu_shard_bytes(const Model& model, const ShardLayout& layout, int threads) {
  return saturated_add(footprint(model, layout, DeviceKind::cpu, threads).total(),
                       offload_bytes(model, layout, {.threads = threads}));
}

std::int64_t handoff_bytes(const ModelSpec& spec, const ShardLayout& layout) {
  const std::int64_t pieces = layout.embedding ? 1 : kPiecesPerBoundary;  // the first fills one
  return pieces * layout.max_rows * spec.n_embd * std::int64_t{sizeof(float)};
}

Status device_supports(DeviceKind kind, const ModelSpec& spec) {
  return kind == DeviceKind::cpu ? cpu_supports(spec) : gpu_supports(spec);
}

}  // namespace tessera
