// ExpertStream: experts that lie packed in pinned host memory and cross to the device for a step.
//
//   TESSERA_ASSIGN(ExpertStream stream,
//                  ExpertStream::load(model, shard, layout, arena, options, progress));
//   stream.experts(3);                                   // which of layer 3 it has
//   TESSERA_TRY(stream.run(3, pairs, queue, [&](const StreamedGroup& group) { ... }));
//
// The copies go through a ring of groups of slots on a queue of their own: a group is filled as
// soon as the kernels that used it before are done, and computed as soon as it is filled, so that
// copies and kernels run side by side. run() enqueues a layer's and returns; behind them it begins
// to fill the ring for the next layer, whose routing nobody knows yet: with as many rows as make
// streaming worth while nearly every expert is chosen. What is there of a layer that does not come
// is dropped.
//
// Where the host gives no pinned memory for a layer's experts, it has none of that layer.
// Errors: those of the driver. A copy that fails, or hangs, shows on the queue that waits for it.
#pragma once

#include <functional>
#include <vector>

#include "device/gpu/gpu_layout.h"
#include "device/gpu/plugin/driver.h"
#include "device/gpu/plugin/gpu_weights.h"

namespace tessera::gpu {

// What one call of `compute` is to read.
struct StreamedGroup {
  TableArgs table;
  int experts = 0, pairs = 0;  // that are wanted, and by how many
};

class ExpertStream {
 public:
  using Compute = std::function<Status(const StreamedGroup& group)>;

  // `arena`: where the layout's offsets are from.
  static Result<ExpertStream> load(const Model& model, const ShardLayout& shard,
                                   const WeightLayout& layout, std::byte* arena,
                                   const LoadOptions& options, const LoadProgress& progress);

  // By number, 1 for those that it has; empty for none. Layers are the shard's, from 0.
  std::span<const std::uint8_t> experts(int layer) const;
  // For one of the layer's experts to cross, as measured.
  double expert_us(int layer) const;
  // Where they lie, [n_expert]; null: one that it has not. Empty for none.
  std::vector<const std::byte*> places(int layer) const;

  // Brings the layer's experts here that have pairs, of [n_expert], and calls `compute` for each
  // group of them to enqueue on `queue` what reads it.
  Status run(int layer, std::span<const std::int32_t> pairs, GpuStream queue,
             const Compute& compute);

  // Enqueues the copy of one that it has to a place of its own, behind `free`; whether the last
  // such copy is done. It has the expert still.
  Status bring(int layer, int expert, std::byte* place, const Event& free);
  Result<bool> brought() const { return passed(brought_); }

  const StreamedExperts& streamed() const { return streamed_; }
  GpuStream queue() const { return queue_.get(); }

 private:
  struct Layer {
    std::vector<std::int32_t> experts;  // in the order of `packed`
    std::vector<std::uint8_t> has;      // [n_expert]
    std::vector<std::int32_t> index;    // [n_expert]: in `experts`; of those that it has
    std::int64_t expert_bytes = 0;
    PinnedBuffer packed;
  };
  struct Group {
    std::byte* slots = nullptr;
    Event filled, used;
    // What it is filled with, or about to be.
    int layer = 0;
    std::vector<std::int32_t> experts;
  };

  Status allocate(const WeightLayout& layout, std::byte* arena);
  Status measure(double wait_seconds);
  Status fill_free(int layer, std::span<const std::int32_t>& left);
  Status fill(int layer, std::span<const std::int32_t> experts);
  Status use(const Group& group, std::span<const std::int32_t> pairs, GpuStream queue,
             const Compute& compute);
  Status prefetch(int after);
  bool here(std::int32_t expert);  // in a group that is filled
  Status wait_for(const Event& event);

  std::vector<Layer> layers_;
  std::vector<Group> groups_;
  int group_slots_ = 0;
  const std::byte** table_ = nullptr;
  Stream queue_;
  // The groups before it, round the ring, are filled, so many of them.
  Group& filled(std::size_t i) {
    return groups_[(next_ + groups_.size() - n_filled_ + i) % groups_.size()];
  }
  std::size_t next_ = 0, n_filled_ = 0;
  std::vector<std::int32_t> missing_;  // of the layer under way
  Event brought_;
  double us_per_byte_ = 0.0;
  StreamedExperts streamed_;
};

}  // namespace tessera::gpu
