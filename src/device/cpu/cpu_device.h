// CpuDevice: the Device contract on a team of CPU threads. The reference that other devices are
// tested against, and the place where experts are computed that fit nowhere else.
//
//   TESSERA_ASSIGN(auto device, make_cpu_device({.threads = 2}));
//   TESSERA_TRY(device->load(model, layout, {}));
//
// Each block is one fork/join of the team with barriers between its phases. Calls run at once, on
// the calling thread and the team's. A row's result has the same bits whatever the batch, the
// number of threads and the cut of the work; it differs by rounding between instruction sets.
#pragma once

#include <memory>
#include <vector>

#include "base/checked.h"
#include "device/cpu/isa.h"
#include "device/device.h"

namespace tessera {

struct CpuDeviceOptions {
  int threads = 1;
  std::vector<int> cpus;  // thread i is bound to cpus[i]; empty: not bound
  cpu::Isa isa = cpu::detect_isa();
  // The gated delta net's prefill form: token by token (the default, and bitwise the same for any
  // cut of the prompt) or in chunks of 64.
  bool chunked_delta = false;
};

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options);

// Whether the CPU device can compute every layer; one line that says what it cannot otherwise.
Status cpu_supports(const ModelSpec& spec);

// The bytes that a CPU device needs for a shard. What it allocates is this, to the byte.
struct CpuFootprint {
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t recurrent = 0;
  std::int64_t scratch = 0;
  std::int64_t total() const { return saturated_sum({weights, kv, recurrent, scratch}); }
};
CpuFootprint cpu_footprint(const Model& model, const ShardLayout& shard, int threads);

// Bytes that one expert of each layer of the model takes on a CPU device; 0 where there is none.
std::vector<std::int64_t> cpu_expert_bytes(const Model& model, const ShardLayout& shard);

// Bytes of one KV page of a group, and of one recurrent slot, over the shard's layers.
std::int64_t cpu_page_bytes(const ModelSpec& spec, const ShardLayout& shard, int kv_group);
std::int64_t cpu_slot_bytes(const ModelSpec& spec, const ShardLayout& shard);

}  // namespace tessera
