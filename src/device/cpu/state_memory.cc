#include "device/cpu/state_memory.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace tessera::cpu {
namespace {

std::int64_t recurrent_floats(const GatedDeltaSpec& spec) {
  return std::int64_t{spec.conv_width - 1} * spec.conv_channels() +
         std::int64_t{spec.n_value_head} * spec.dim_k * spec.dim_v;
}

// Writes a zero into every page, so that the memory is there.
void touch(AlignedBuffer& buffer, ThreadTeam& team) {
  constexpr std::size_t kStep = 4096;
  constexpr int kGrain = 4096;
  const int steps = static_cast<int>(ceil_div(buffer.size(), kStep));
  team.run([&](TeamMember& member) {
    member.for_each(steps, kGrain, [&](int begin, int end) {
      for (int i = begin; i < end; ++i)
        *static_cast<volatile std::byte*>(buffer.data() + static_cast<std::size_t>(i) * kStep) =
            std::byte{0};
    });
  });
}

}  // namespace

StateLayout state_layout(const ModelSpec& spec, const ShardLayout& shard) {
  StateLayout layout;
  const std::size_t n_layer = spec.layers.size();
  layout.kv.assign(n_layer, LayerKv{.group = -1});
  layout.slot_offset.assign(n_layer, -1);
  const auto mine = [&](int l) { return l >= shard.first_layer && l < shard.end_layer; };

  const std::vector<KvGroup> groups = kv_groups(spec);
  layout.page_bytes.assign(groups.size(), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (int l : groups[g].layers) {
      if (!mine(l)) continue;
      const AttentionSpec& a = *spec.layers[static_cast<std::size_t>(l)].attention();
      LayerKv& kv = layout.kv[static_cast<std::size_t>(l)];
      kv.geometry = {a.n_kv_head, a.head_dim_k, a.head_dim_v, shard.kv_type};
      kv.group = static_cast<int>(g);
      kv.offset = layout.page_bytes[g];
      layout.page_bytes[g] += static_cast<std::int64_t>(kv_layer_page_bytes(kv.geometry));
    }
  }
  for (int l = 0; l < static_cast<int>(n_layer); ++l) {
    const auto i = static_cast<std::size_t>(l);
    const LayerSpec& layer = spec.layers[i];
    if (!mine(l)) continue;
    // A layer that attends over another layer's KV reads it where that layer keeps it.
    if (const AttentionSpec* a = layer.attention(); a != nullptr && a->kv_source >= 0)
      layout.kv[i] = layout.kv[static_cast<std::size_t>(a->kv_source)];
    if (const GatedDeltaSpec* g = layer.gated_delta()) {
      layout.slot_offset[i] = layout.slot_floats;
      layout.slot_floats += round_up<std::int64_t>(recurrent_floats(*g), 16);
    }
  }
  return layout;
}

std::int64_t StateLayout::kv_bytes(const ShardLayout& shard) const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < page_bytes.size(); ++g)
    bytes = saturated_add(bytes, saturated_mul<std::int64_t>(page_bytes[g], shard.kv_pages[g]));
  return bytes;
}

std::int64_t StateLayout::slot_bytes(const ShardLayout& shard) const {
  return saturated_mul(saturated_mul<std::int64_t>(slot_floats, shard.slots),
                       std::int64_t{sizeof(float)});
}

Result<StateMemory> StateMemory::allocate(const ModelSpec& spec, const ShardLayout& shard,
                                          ThreadTeam& team) {
  StateMemory memory;
  memory.layout_ = state_layout(spec, shard);
  for (const LayerKv& kv : memory.layout_.kv)
    if (kv.group >= 0) TESSERA_TRY(validate(kv.geometry));
  for (std::size_t g = 0; g < memory.layout_.page_bytes.size(); ++g) {
    const std::int64_t bytes = memory.layout_.page_bytes[g] * shard.kv_pages[g];
    TESSERA_ASSIGN(AlignedBuffer pool, AlignedBuffer::allocate(static_cast<std::size_t>(bytes)));
    touch(pool, team);
    memory.pools_.push_back(std::move(pool));
  }
  TESSERA_ASSIGN(memory.slots_, AlignedBuffer::allocate(
                                    static_cast<std::size_t>(memory.layout_.slot_bytes(shard))));
  touch(memory.slots_, team);
  return memory;
}

float* StateMemory::recurrent(const SequenceRows& sequence, int layer) {
  return slots_.as<float>() + sequence.slot * layout_.slot_floats +
         layout_.slot_offset[static_cast<std::size_t>(layer)];
}

void StateMemory::reset_slot(int slot) {
  std::fill_n(slots_.as<float>() + slot * layout_.slot_floats, layout_.slot_floats, 0.0f);
}

void StateMemory::copy_slot(const StateCopy& slots) {
  std::copy_n(slots_.as<float>() + slots.from * layout_.slot_floats, layout_.slot_floats,
              slots_.as<float>() + slots.to * layout_.slot_floats);
}

void StateMemory::copy_page(int group, const StateCopy& pages) {
  const std::int64_t bytes = page_bytes(group);
  // A shard without a layer of the group has no memory for it.
  if (bytes > 0)
    std::memcpy(pool(group) + pages.to * bytes, pool(group) + pages.from * bytes,
                static_cast<std::size_t>(bytes));
}

}  // namespace tessera::cpu
