#include "pipeline/pipeline.h"

#include "base/check.h"
#include "device/cpu/cpu_device.h"

namespace tessera {

Result<std::unique_ptr<Pipeline>> Pipeline::load(const Model& model, const Plan& plan,
                                                 std::vector<std::unique_ptr<Device>> devices,
                                                 const LoadProgress& progress) {
  CHECK(devices.size() == plan.shards.size());
  auto pipeline = std::unique_ptr<Pipeline>(new Pipeline());
  pipeline->spec_ = model.spec();
  std::int64_t total = 0;
  for (const ShardPlan& shard : plan.shards) total += shard.weight_bytes;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const ShardPlan& shard = plan.shards[i];
    // A shard reports bytes of the file; the whole is told in bytes of the plan.
    const LoadProgress part = [&](std::int64_t done, std::int64_t of) {
      if (progress)
        progress(before + (of > 0 ? shard.weight_bytes * (done >> 8) / ((of >> 8) + 1) : 0), total);
    };
    if (Status loaded = devices[i]->load(model, shard.layout, part); !loaded)
      return std::move(loaded.error()).in(shard.device);
    before += shard.weight_bytes;
    if (progress) progress(before, total);
    pipeline->shards_.push_back(
        {std::move(devices[i]), shard.layout.first_layer, shard.layout.end_layer});
  }
  if (pipeline->shards_.size() > 1)
    pipeline->boundary_.resize(static_cast<std::size_t>(plan.max_rows) *
                               static_cast<std::size_t>(model.spec().n_embd));
  return pipeline;
}

Status Pipeline::forward(const BatchView& batch) {
  const std::span<float> boundary(boundary_.data(),
                                  boundary_.empty() ? 0
                                                    : static_cast<std::size_t>(batch.rows()) *
                                                          static_cast<std::size_t>(spec_.n_embd));
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Device& device = *shards_[i].device;
    device.begin(batch);
    if (i == 0) {
      device.embed();
    } else {
      device.write_hidden(boundary);
    }
    for (int layer = shards_[i].first_layer; layer < shards_[i].end_layer; ++layer) {
      device.mixer(layer);
      device.route(layer);
      device.all_experts(layer);
      device.dense(layer);
      device.finish_ffn(layer);
    }
    if (i + 1 < shards_.size()) device.read_hidden(boundary);
  }
  shards_.back().device->head();
  return {};
}

void Pipeline::reset_slot(int slot) {
  for (Shard& shard : shards_) shard.device->reset_slot(slot);
}

SequencePoolLayout sequence_pool_layout(const Plan& plan) {
  // Every shard has pages for the same positions, so the first one's numbers serve for all.
  const ShardLayout& shard = plan.shards.front().layout;
  SequencePoolLayout layout{.slots = shard.slots, .max_chunk = plan.prefill_chunk};
  for (std::size_t group = 0; group < plan.kv_windows.size(); ++group)
    layout.groups.push_back({.window = plan.kv_windows[group], .pages = shard.kv_pages[group]});
  return layout;
}

Result<std::vector<std::unique_ptr<Device>>> open_devices(const Plan& plan,
                                                          const DeviceOptions& options) {
  cpu::Isa isa = cpu::detect_isa();
  if (!options.cpu_isa.empty()) {
    TESSERA_ASSIGN(isa, cpu::parse_isa(options.cpu_isa));
  }
  std::vector<std::unique_ptr<Device>> devices;
  for (const ShardPlan& shard : plan.shards) {
    TESSERA_ASSIGN(auto device, make_cpu_device({.threads = shard.threads,
                                                 .isa = isa,
                                                 .chunked_delta = options.chunked_delta}));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace tessera
