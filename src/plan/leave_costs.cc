// The part of ShardPlanner that estimates what of a range leaves its device's memory, for the
// choice of a cut. shard() says exactly what leaves, and takes too long to be asked for every
// range.
#include <algorithm>

#include "base/checked.h"
#include "plan/footprint.h"
#include "plan/shard_planner.h"

namespace tessera {
namespace {

// Of a shard of this layout, with the embedding and the head or without.
std::int64_t weights_of(const Model& model, ShardLayout layout, DeviceKind kind, bool embedding,
                        bool head) {
  layout.embedding = embedding;
  layout.head = head;
  return footprint(model, layout, kind, /*threads=*/1).weights;
}

}  // namespace

std::vector<ShardPlanner::Holding> ShardPlanner::holdings() const {
  std::vector<Holding> all;
  if (sizes_.leave == Leave::nothing) return all;
  const int n = static_cast<int>(devices_.size()), n_layer = spec_.n_layer();
  for (int i = 0; i < n; ++i) {
    const DeviceInventory& on = devices_[static_cast<std::size_t>(i)];
    Holding holding;
    const auto alike = std::find_if(devices_.begin(), devices_.begin() + i,
                                    [&](const auto& other) { return other.kind == on.kind; });
    if (alike != devices_.begin() + i)
      holding = all[static_cast<std::size_t>(alike - devices_.begin())];
    else
      holding = holding_of(on.kind);
    // The scratch of the longest range that it can have; more where something leaves.
    const LayerRange longest{i, n_layer - (n - 1 - i)};
    std::vector<std::int64_t> room = worker_room_;
    const auto besides = [](const ShardPlan& shard) {
      return saturated_rest(shard.charged_bytes(),
                            {shard.weight_bytes, shard.kv_bytes, shard.recurrent_bytes});
    };
    holding.beside = besides(shard(i, longest, Residents::all));
    const ShardPlan least = shard(i, longest, Residents::least, /*budget=*/0, room);
    holding.beside_left = besides(least);
    holding.embedding = saturated_rest(holding.embedding, {least.table_bytes});
    all.push_back(std::move(holding));
  }
  return all;
}

// The kind decides how weights are stored.
ShardPlanner::Holding ShardPlanner::holding_of(DeviceKind kind) const {
  Holding holding;
  for (int l = 0; l < spec_.n_layer(); ++l) {
    ShardLayout layout = this->layout({l, l + 1});
    layout.embedding = layout.head = false;
    const Footprint bytes = footprint(model_, layout, kind, /*threads=*/1);
    const auto& moe = spec_.layers[static_cast<std::size_t>(l)].moe;
    const std::int64_t experts =
        moe ? saturated_mul<std::int64_t>(moe->n_expert, expert_bytes_[static_cast<std::size_t>(l)])
            : 0;
    holding.layers.push_back({.others = saturated_rest(bytes.weights, {experts}),
                              .experts = experts,
                              .state = saturated_add(bytes.kv, bytes.recurrent)});
  }
  const ShardLayout one = layout({0, 1});
  const std::int64_t bare = weights_of(model_, one, kind, false, false);
  holding.embedding = saturated_rest(weights_of(model_, one, kind, true, false), {bare});
  holding.head = saturated_rest(weights_of(model_, one, kind, false, true), {bare});
  return holding;
}

// As place_experts() and leave_weights() do it: experts first, then the embedding, the layers from
// the last to the first, and the head.
ShardPlanner::LeftReads ShardPlanner::left_reads(int device, LayerRange layers,
                                                 const Holding& holding,
                                                 const LayerReads& reads) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const bool fixed = options_.expert_resident.has_value();  // the same with any cut
  const bool head = layers.end == spec_.n_layer();
  const double kept = fixed ? *options_.expert_resident / 100.0 : 1.0;
  double bytes = static_cast<double>(saturated_rest(holding.beside, {budget(device)}));
  double experts = 0.0, floor = 0.0;
  double expert_reads = 0.0;
  for (int l = layers.begin; l < layers.end; ++l) {
    const auto at = static_cast<std::size_t>(l);
    const Holding::Layer& layer = holding.layers[at];
    experts += static_cast<double>(layer.experts) * kept;
    bytes += static_cast<double>(saturated_add(layer.others, layer.state));
    expert_reads += reads.experts[at];
    if (const auto& moe = spec_.layers[at].moe)
      floor +=
          static_cast<double>(layer.experts) * std::min(moe->n_used, moe->n_expert) / moe->n_expert;
  }
  bytes += experts;
  if (layers.begin == 0) bytes += static_cast<double>(holding.embedding);
  if (head) bytes += static_cast<double>(holding.head);
  LeftReads left;
  if (bytes <= 0.0) return left;
  bytes += static_cast<double>(saturated_rest(holding.beside_left, {holding.beside}));
  const bool weights_leave = sizes_.leave == Leave::weights && may_leave_weights(on);
  if (fixed) {
    expert_reads = 0.0;
  } else if (!weights_leave || bytes <= experts - floor) {
    if (experts > 0.0) left.row = expert_reads * std::min(1.0, bytes / experts);
    left.token = left.row;
    return left;
  } else {
    bytes -= experts;
  }
  double spared = -bytes;  // of the memory, by what has left it
  if (spared < 0.0 && layers.begin == 0) spared += static_cast<double>(holding.embedding);
  for (int l = layers.end; spared < 0.0 && l-- > layers.begin;) {
    spared += static_cast<double>(holding.layers[static_cast<std::size_t>(l)].others);
    left.row += reads.others[static_cast<std::size_t>(l)];
  }
  if (spared < 0.0 && head) {
    spared += static_cast<double>(holding.head);
    left.token = reads.head;
  }
  if (experts > 0.0) left.row += expert_reads * (1.0 - std::clamp(spared / experts, 0.0, 1.0));
  left.token += left.row;
  return left;
}

}  // namespace tessera
