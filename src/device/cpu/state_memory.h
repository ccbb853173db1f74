// StateMemory: the KV pages and recurrent slots of a shard on the CPU device.
//
// KV: one allocation per group, [pages][layers of the group in the shard][kv_layer_page_bytes].
// Recurrent: [slots][layers][convolution history, then S of every value head], f32 (gated_delta.h).
// All of it is touched at allocation: a plan that does not fit fails then, not in the middle of an
// answer.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/thread_team.h"
#include "device/cpu/kv_layout.h"
#include "device/device.h"

namespace tessera::cpu {

// Where one attention layer's KV lies.
struct LayerKv {
  KvGeometry geometry;
  int group = 0;
  std::int64_t offset = 0;  // within a page
};

struct StateLayout {
  std::vector<LayerKv> kv;                // by layer of the model; group -1 where none
  std::vector<std::int64_t> page_bytes;   // by group
  std::vector<std::int64_t> slot_offset;  // by layer of the model, in floats; -1 where none
  std::int64_t slot_floats = 0;

  std::int64_t kv_bytes(const ShardLayout& shard) const;
  std::int64_t slot_bytes(const ShardLayout& shard) const;
};
StateLayout state_layout(const ModelSpec& spec, const ShardLayout& shard);

class StateMemory {
 public:
  static Result<StateMemory> allocate(const ModelSpec& spec, const ShardLayout& shard,
                                      ThreadTeam& team);

  const LayerKv& kv(int layer) const { return layout_.kv[static_cast<std::size_t>(layer)]; }
  std::byte* pool(int group) { return pools_[static_cast<std::size_t>(group)].data(); }
  std::int64_t page_bytes(int group) const {
    return layout_.page_bytes[static_cast<std::size_t>(group)];
  }
  // The recurrent state of one layer of one sequence.
  float* recurrent(const SequenceRows& sequence, int layer);

  void reset_slot(int slot);
  void copy_slot(const StateCopy& slots);
  void copy_page(int group, const StateCopy& pages);

 private:
  StateLayout layout_;
  std::vector<AlignedBuffer> pools_;
  AlignedBuffer slots_;
};

}  // namespace tessera::cpu
