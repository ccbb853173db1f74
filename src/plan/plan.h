// Plan: which layers lie on which device and every byte that they will take, before one is loaded.
//
//   TESSERA_ASSIGN(Plan plan, make_plan(model, inventory, options));
//   fmt::print("{}", plan_table(plan));       // what `tessera plan` shows
//   device->load(model, plan.shards[0].layout, progress);
//
// make_plan is a pure function of its arguments: the inventory is probed elsewhere
// (probe_inventory), and loading uses the plan's numbers as they are. Each device of the inventory
// gets one range of layers, in its order. A plan that does not fit is an error
// (ErrorCode::exhausted) that says which device lacks how much and what would fit.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "model/model.h"
#include "plan/placement.h"

namespace tessera {

struct DeviceInventory {
  std::string name;  // "cpu", "cpu:0"
  int threads = 0;
  std::vector<int> cpus;          // where they run; empty: wherever the system puts them
  int memory = 0;                 // devices of the same number share their memory
  std::int64_t memory_total = 0;  // bytes
  std::int64_t memory_free = 0;   // of them; a probe may report more than there are in all
  std::optional<std::int64_t>
      budget;  // bytes the device may use; absent: its share of what is free
};

struct Inventory {
  std::vector<DeviceInventory> devices;  // in the order of the layers that they get
};

// This machine as one device: its processors and memory (a cgroup's limit, where one is set).
Inventory probe_inventory(int threads);
// The devices of a placement; `threads` is shared out among them, 0: one for each of their cores.
// ErrorCode::invalid where there are fewer threads than devices.
Result<Inventory> probe_inventory(const Placement& placement, int threads);

struct PlanOptions {
  int context =
      0;  // positions a sequence may have; 0: the model's, at most 32,768, as memory allows
  int parallel = 1;         // sequences at a time
  int prefill_chunk = 512;  // prompt rows of one step
  int logit_rows = 0;       // rows whose logits one step can return; 0: one a sequence
  // Absent: f32 where every weight matrix is F32, F16 or BF16, so that such a model is computed in
  // f32 throughout, else f16.
  std::optional<KvType> kv_type;
  // One a device: its share of the layers (layer_cuts.h). Empty: so that the devices take the same
  // time for a prompt and none is over its budget.
  std::vector<double> layer_weights;
};

// Pieces of a batch between two shards: one is computed on, the next waits.
inline constexpr int kPiecesPerBoundary = 2;

struct ShardPlan {
  std::string device;
  int threads = 0;
  std::vector<int> cpus;  // DeviceInventory::cpus
  ShardLayout layout;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t recurrent_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t handoff_bytes = 0;  // rows between shards, logits of several pieces
  std::int64_t host_bytes = 0;     // Plan::process_bytes, with the first shard
  std::int64_t budget_bytes = 0;   // for all of these
  int experts = 0;                 // resident, over its layers

  std::int64_t total_bytes() const {
    return weight_bytes + kv_bytes + recurrent_bytes + scratch_bytes + handoff_bytes;
  }
  std::int64_t free_bytes() const { return budget_bytes - total_bytes() - host_bytes; }
};

struct Plan {
  std::string model;
  std::string architecture;
  int n_layer = 0;
  int context = 0;
  int parallel = 0;
  int prefill_chunk = 0;
  int max_rows = 0;    // of a batch
  int piece_rows = 0;  // rows that go through the shards together, at most
  KvType kv_type = KvType::f16;
  std::vector<int> kv_windows;     // by KV group; 0: whole context
  std::int64_t process_bytes = 0;  // program, tokenizer, buffers outside the devices
  std::vector<ShardPlan> shards;
  double decode_bytes_per_token = 0.0;  // weights and state that one token at context 0 reads

  int threads() const;               // of all shards
  std::int64_t total_bytes() const;  // predicted peak of the process
};

Result<Plan> make_plan(const Model& model, const Inventory& inventory, const PlanOptions& options);

// Weights, recurrent state and (at `depth`) KV that one decoded token reads. Of a step of several
// rows, each of its own sequence: a row's share, with experts drawn evenly.
double decode_bytes(const Model& model, KvType kv_type, int depth, int rows = 1);

nlohmann::ordered_json plan_json(const Plan& plan);
std::string plan_table(const Plan& plan);
std::string format_bytes(std::int64_t bytes);  // "1.5 GiB"

}  // namespace tessera
