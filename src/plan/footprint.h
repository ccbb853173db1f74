// What a shard takes of a device's memory, and whether the device computes such a model: the
// device's own count and word, whatever its kind.
//
//   TESSERA_TRY(device_supports(device.kind, spec));
//   std::int64_t bytes = footprint(model, layout, device.kind, device.threads).total();
#pragma once

#include "base/checked.h"
#include "device/device.h"
#include "model/model.h"
#include "plan/placement.h"

namespace tessera {

struct Footprint {
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t recurrent = 0;
  std::int64_t scratch = 0;
  std::int64_t total() const { return saturated_sum({weights, kv, recurrent, scratch}); }
};

// `threads`: of a CPU device; others take the same with any number.
Footprint footprint(const Model& model, const ShardLayout& layout, DeviceKind kind, int threads);

// A shard on a CPU device of this process, with what it needs for experts that are away from it.
std::int64_t cpu_shard_bytes(const Model& model, const ShardLayout& layout, int threads);

// Buffers of one of several shards: rows on their way to the next. Logits of several pieces, which
// no server asks for, come besides.
std::int64_t handoff_bytes(const ModelSpec& spec, const ShardLayout& layout);

// One line that says what it cannot compute otherwise.
Status device_supports(DeviceKind kind, const ModelSpec& spec);

}  // namespace tessera
