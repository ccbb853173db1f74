// Plan: which layers lie on which device and every byte that they will take, before one is loaded.
//
//   TESSERA_ASSIGN(Plan plan, make_plan(model, inventory, options));
//   fmt::print("{}", plan_table(plan));       // what `tessera plan` shows
//   device->load(model, plan.shards[0].layout, progress);
//
// make_plan is a pure function of its arguments: the inventory is probed elsewhere
// (probe_inventory), and loading uses the plan's numbers as they are. Each device of the inventory
// gets one range of layers, in its order, or several (turns.h). Where the experts of its layers do
// not fit beside the rest, a device holds some of them (expert_placement.h) and the others stay in
// the mapped file or go to workers; then other weights of CPU devices stay in the file too. A plan
// that does not fit even so is an error (ErrorCode::exhausted) that says which device lacks how
// much and what would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/result.h"
#include "device/device.h"
#include "model/model.h"
#include "plan/drafter_reserve.h"
#include "plan/expert_placement.h"
#include "plan/layer_times.h"
#include "plan/placement.h"

namespace tessera {

// DeviceInventory::memory of this machine.
inline constexpr int kHostMemory = 0;

// What one CPU thread reads a second, about; a GPU's speed is told in such threads.
inline constexpr double kThreadBytesPerSecond = 8e9;

// Memory that a connection to a worker takes at each end: frames and rows on their way. What both
// ends share is this process's, which makes it, and is in the machine's memory once.
struct ConnectionBytes {
  std::int64_t here = 0;
  std::int64_t there = 0;
};

// What the devices of this process send to a worker of experts, at most.
struct ExpertJobs {
  int max_rows = 0;   // of a job
  int shards = 1;     // that send some
  int under_way = 1;  // at a time, of all shards
};
// No more are under way, however many there are for a layer.
inline constexpr int kMostExpertJobs = 8;

struct DeviceInventory {
  std::string name;      // "cpu", "cpu:0", "cuda:0", "worker:0"
  std::string model;     // of a GPU here, as its driver calls it
  bool remote = false;   // in another process
  bool here = true;      // on this machine
  bool has_file = true;  // of the model, for experts that leave its memory
  DeviceKind kind = DeviceKind::cpu;
  int number = 0;                   // as in cpu:1, of a GPU its driver's; remote: not known
  int threads = 0;                  // of a GPU: that drive it
  double speed = 0.0;               // in CPU threads; 0: `threads`
  double bytes_per_s = 0.0;         // at which it reads its memory, as it says; 0: not known
  double op_per_s = 0.0;            // MeasuredSpeed::op_per_s, as it says; 0: not known
  std::uint64_t hands_rows_to = 0;  // of a GPU here: GpuInfo::hands_rows_to
  bool runs = false;                // and its runs
  std::vector<int> cpus;            // where they run; empty: wherever the system puts them
  int memory = kHostMemory;         // devices of the same number share their memory
  std::int64_t memory_total = 0;    // bytes
  std::int64_t memory_free = 0;     // of them; a probe may report more than there are in all
  std::optional<std::int64_t>
      budget;                        // bytes the device may use; absent: its share of what is free
  std::optional<std::int64_t> most;  // of its share, without a budget: what a worker here allows
  // Of a worker, for such a shard there; which layers it has makes no difference but for the
  // embedding and the head. Pure; absent: it takes none.
  std::function<ConnectionBytes(const ShardLayout&)> connection;
  std::optional<LayerTimes> times;  // measured on it
};

// A worker process of the role experts.
struct ExpertWorkerInventory {
  std::string name;                   // "worker:1"
  bool here = false;                  // on this machine, spawned or not: shares its memory
  DeviceKind kind = DeviceKind::cpu;  // of a GPU the budget is of its own memory
  int threads = 1;
  std::int64_t budget = 0;  // bytes it may take, with its program
  bool bounded = false;     // by what was asked for or what it says; else a share of what is free
  // Why it has not said what it has and takes, which is then assumed. Empty: it has.
  std::string unheard;
  double bytes_per_s = 0.0;  // at which it reads experts, measured; 0: not known
  double op_per_s = 0.0;     // MeasuredSpeed::op_per_s; 0: not known
  double call_s = 0.0;       // a round trip to it and back, measured; 0: not known
  // For such jobs, where it has experts. Pure; absent: it takes none.
  std::function<ConnectionBytes(const ExpertJobs&)> connection;
};

struct Inventory {
  std::vector<DeviceInventory> devices;  // in the order of the layers that they get
  // By the number that ExpertHome::worker() gives them.
  std::vector<ExpertWorkerInventory> expert_workers;
  // Bytes of this machine, for what none of its devices is charged with; 0: as devices in that
  // memory say, or not known.
  std::int64_t memory_total = 0;
  std::int64_t memory_free = 0;  // of them; a probe may report more than there are in all
};

// Processors that this process may run on.
int usable_cores();

// This machine as one device: its processors and memory (a cgroup's limit, where one is set).
Inventory probe_inventory(int threads);

// A worker as a device, from what it said about itself or what it will be started with. Without a
// name: one that holds no layers and takes cores all the same.
struct WorkerInventory {
  DeviceName name;
  bool here = true;  // on this machine: a CPU there shares its memory and cores
  bool has_file = true;
  DeviceKind kind = DeviceKind::cpu;
  int threads = 0;           // 0: a share of this machine's cores, like the devices of this process
  double bytes_per_s = 0.0;  // at which it reads its memory; 0: not known
  double op_per_s = 0.0;     // MeasuredSpeed::op_per_s; 0: not known
  std::int64_t memory_total = 0;       // of a GPU, or elsewhere
  std::int64_t memory_free = 0;        // the same
  std::optional<std::int64_t> budget;  // what it may use, kept free for it
  std::optional<std::int64_t> most;    // the same of one here that shares what is free
  std::function<ConnectionBytes(const ShardLayout&)> connection;  // DeviceInventory::connection
};

// The devices of a placement; `threads` is shared out among those of this process and the workers
// that have no number of their own, 0: one for each of their cores. ErrorCode::invalid where there
// are fewer threads than CPU devices, or a worker is named that `workers` lacks;
// ErrorCode::unavailable where a GPU is not there.
Result<Inventory> probe_inventory(const Placement& placement, int threads,
                                  std::span<const WorkerInventory> workers = {});

// The longer part of most requests is their prompt.
inline constexpr double kPromptRatio = 8.0;

// At most: sequences at a time, and prompt rows of one step.
inline constexpr int kMostParallel = 256;
inline constexpr int kMostPrefillChunk = 16384;

struct PlanOptions {
  int context =
      0;  // positions a sequence may have; 0: the model's, at most 32,768, as memory allows
  int parallel = 1;         // sequences at a time
  int prefill_chunk = 512;  // prompt rows of one step
  int logit_rows = 0;       // rows whose logits one step can return; 0: one a sequence
  // Absent: f32 where every weight matrix is F32, F16 or BF16 or is made so by f32_weights, so that
  // such a model is computed in f32 throughout, else f16.
  std::optional<KvType> kv_type;
  // Every matrix is dequantised when it is loaded and multiplied in f32, without activations in 8
  // bits: the file's own numbers, for comparisons, in the memory of an f32 model.
  bool f32_weights = false;
  // One a device: its share of the layers (layer_cuts.h). Empty: so that prompts and generation
  // together take the least time (fastest_ends) and no device is over its budget.
  std::vector<double> layer_weights;
  // Ranges of layers that each device gets, in turns with the others (turns.h); 0: as many as cost
  // a token nothing, where that costs no context and no expert its place either.
  int turns = 1;
  double prompt_ratio = kPromptRatio;  // prompt tokens expected for one that is generated

  // Which experts stay with their layers' devices (expert_placement.h).
  // Percent of every layer's; absent: all where they fit, else those that make a token cheapest.
  std::optional<double> expert_resident;
  ExpertSpare expert_spare;
  // What leaves the devices of this process goes to workers of experts, none to the host; and where
  // these have no room for it, there is no plan.
  bool expert_workers_required = false;
  // The pages of what leaves the devices of this process are locked in memory (--expert-prefault).
  bool lock_experts = false;
  // Experts of the host cross to GPUs of this process for steps of many rows, where the host's
  // memory has room to keep them packed too (--expert-stream).
  bool expert_stream = true;
  // Where a GPU of this process has the embedding table, if it is not the head as well: in its own
  // memory, or pinned in the host's; automatic: as many of its last rows on the host as the GPU
  // lacks room for, since a token reads one row of it.
  enum class Table { automatic, device, host };
  Table table = Table::automatic;
  // [layer][expert] how often the expert was chosen; of a layer without counts all are alike.
  std::vector<std::vector<double>> expert_counts;
  ExpertCosts expert_costs;    // of the host
  int expert_job_rows = 1024;  // of a job for a worker of experts, at most

  std::optional<DrafterSpec> drafter;  // memory is kept free for it beside the head
};

// Pieces of a batch between two shards: one is computed on, the next waits.
inline constexpr int kPiecesPerBoundary = 2;
// Two before every shard but the first, and the one that the first works on.
constexpr int ring_pieces(int shards) {
  return kPiecesPerBoundary * (shards - 1) + 1;
}

// What a row is expected to want of a worker of experts, in the layers of a shard.
struct ExpertWorkerUse {
  double share = 0.0;  // of its pairs
  double calls = 0.0;  // layers with a pair there
};

struct ShardPlan {
  std::string device;
  bool remote = false;  // DeviceInventory::remote
  bool here = true;     // and its here
  DeviceKind kind = DeviceKind::cpu;
  int number = 0;  // DeviceInventory::number
  int threads = 0;
  std::vector<int> cpus;  // DeviceInventory::cpus
  ShardLayout layout;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t recurrent_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t handoff_bytes = 0;  // rows between shards
  // To other processes: of a worker its own, of the first shard of this process all that are here.
  std::int64_t connection_bytes = 0;
  // Of a process besides its CPU shards: Plan::process_bytes and what its GPUs' shards take of its
  // memory, with the first CPU shard of this one; the program, with each remote one.
  std::int64_t host_bytes = 0;
  std::int64_t budget_bytes = 0;  // for all of these that are in the device's memory
  bool bounded = false;     // by what was asked for or a worker allows; else by what memory is free
  int experts = 0;          // resident, over its layers
  int experts_host = 0;     // away from the device: in the mapped file
  int experts_worker = 0;   // and at workers
  double cold_share = 0.0;  // of a row's pairs, expected: those of experts away
  std::vector<ExpertWorkerUse> worker_uses;  // by the number in ExpertHome::worker; empty: none
  std::int64_t offload_bytes = 0;   // buffers for experts away, in the process of the shard
  std::int64_t staging_bytes = 0;   // pinned, there too, on the way to a GPU and back
  std::int64_t drafter_bytes = 0;   // kept free for a drafter, of the shard with the head
  std::int64_t mapped_bytes = 0;    // experts of the host: pages of the file, which give way
  std::int64_t locked_bytes = 0;    // or experts away: pages that do not, in the shard's process
  std::int64_t table_bytes = 0;     // rows of the embedding table in pinned memory; likewise
  std::int64_t streamed_bytes = 0;  // experts packed in pinned memory, to cross to a GPU; likewise
  std::int64_t file_bytes = 0;      // and of its other weights (ShardLayout::file_parts)
  std::string file_parts;           // which: "embedding, layers 3-7"
  std::optional<StepTime> time;     // of its layers, measured with all experts on the device
  double bytes_per_s = 0.0;         // DeviceInventory::bytes_per_s
  double op_per_s = 0.0;            // and its op_per_s

  std::int64_t total_bytes() const {
    const std::int64_t device =
        saturated_sum({weight_bytes, kv_bytes, recurrent_bytes, scratch_bytes, drafter_bytes});
    return kind == DeviceKind::cpu ? saturated_add(device, process_bytes()) : device;
  }
  std::int64_t buffer_bytes() const {
    return saturated_sum({handoff_bytes, connection_bytes, offload_bytes, staging_bytes});
  }
  // In its process's memory, whatever the device.
  std::int64_t process_bytes() const {
    return saturated_sum({buffer_bytes(), locked_bytes, streamed_bytes, table_bytes});
  }
  // Of the budget. The memory of a GPU is not its process's.
  std::int64_t charged_bytes() const {
    return kind == DeviceKind::cpu ? saturated_add(total_bytes(), host_bytes) : total_bytes();
  }
  std::int64_t free_bytes() const { return saturated_rest(budget_bytes, {charged_bytes()}); }
};

// A worker of experts with what it is given (expert_workers.h).
struct ExpertWorkerPlan {
  std::string device;
  bool here = false;                  // ExpertWorkerInventory::here
  DeviceKind kind = DeviceKind::cpu;  // its kind
  int threads = 0;                    // 0: it has no experts and is not started
  int experts = 0;                    // over all layers
  int job_rows = 0;                   // of a job, at most
  int jobs = 0;                       // under way at a time, at most
  double call_s = 0.0;                // ExpertWorkerInventory::call_s
  double bytes_per_s = 0.0;           // its bytes_per_s
  double op_per_s = 0.0;              // and its op_per_s
  std::int64_t weight_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t connection_bytes = 0;  // its end, with the jobs that it has
  std::int64_t host_bytes = 0;        // its program, and a GPU's buffers
  std::int64_t budget_bytes = 0;      // for all of these; of a GPU for weights and scratch
  bool bounded = false;               // ExpertWorkerInventory::bounded
  std::string unheard;                // and its unheard

  std::int64_t total_bytes() const {
    return saturated_sum({weight_bytes, scratch_bytes, on_gpu() ? 0 : connection_bytes});
  }
  std::int64_t free_bytes() const {
    return saturated_rest(budget_bytes, {total_bytes(), on_gpu() ? 0 : host_bytes});
  }
  // Of its machine's memory.
  std::int64_t machine_bytes() const {
    return saturated_sum({host_bytes, on_gpu() ? connection_bytes : total_bytes()});
  }
  bool on_gpu() const { return kind != DeviceKind::cpu; }
};

// This process in its machine's memory, where no CPU device of it is charged with the program: all
// layers are at GPUs and workers.
struct ProgramPlan {
  std::int64_t program_bytes = 0;     // Plan::process_bytes
  std::int64_t connection_bytes = 0;  // its ends, where no shard here has them
  std::int64_t gpu_bytes = 0;         // ShardPlan::process_bytes of the GPUs' shards here
  // What devices and workers leave of that memory; absent: nobody has said what there is.
  std::optional<std::int64_t> budget_bytes;

  std::int64_t total_bytes() const {
    return saturated_sum({program_bytes, connection_bytes, gpu_bytes});
  }
  bool fits() const { return !budget_bytes || total_bytes() <= *budget_bytes; }
};

// What somebody who may compute experts away was taken to cost when they were placed.
inline constexpr const char* kHostExecutor = "host";
struct ExecutorCosts {
  std::string executor;  // kHostExecutor, "worker:0"
  ExpertCosts costs;
};

// A drafter that memory is kept free for: ShardPlan::drafter_bytes, taken apart.
struct DrafterPlan {
  std::string name;
  int block_rows = 0;  // DrafterSpec::block_rows
  DrafterReserve reserve;
};

// How fast a plan is (prediction.h).
struct SpeedBound {
  double tokens_per_s = 0.0;
  std::string bound;  // "reading weights"
};
// One shard's part. Of measured times nobody knows what bounds them.
struct ShardPrediction {
  SpeedBound prefill;
  double token_s = 0.0;  // of each token that is generated
  std::string token_bound;
};
// A worker of experts' part of each token that is generated.
struct ExpertWorkerPrediction {
  double calls = 0.0;
  double bytes = 0.0;  // of experts that it reads
  double token_s = 0.0;
};
struct Prediction {
  bool measured = false;  // from the layers' times; else the most that the machine allows
  SpeedBound prefill;     // of a long prompt
  SpeedBound decode;      // one sequence, with an empty context
  // The last device begins with a prompt after the first piece went through the others' ranges of
  // its first turn: seconds that this takes besides, for each row of the piece.
  double fill_row_s = 0.0;
  std::vector<ShardPrediction> shards;                 // of Plan::shards
  std::vector<ExpertWorkerPrediction> expert_workers;  // of Plan::expert_workers
};

// What decided where the layers are cut.
enum class CutBy { nothing, weights, bytes, times };  // nothing: there is one device
const char* cut_by_name(CutBy by);                    // "weights"

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
  bool f32_weights = false;
  std::vector<int> kv_windows;     // by KV group; 0: whole context
  std::int64_t process_bytes = 0;  // program, tokenizer, buffers outside the devices
  std::vector<ShardPlan> shards;
  int turns = 1;  // shards a device: i, i + devices(), i + 2 devices(), ...
  std::vector<ExpertWorkerPlan> expert_workers;  // by the number in ExpertHome::worker
  std::optional<ProgramPlan> program;            // absent: a CPU shard here has it in host_bytes
  std::vector<ExecutorCosts> expert_costs;       // where experts are away
  std::optional<DrafterPlan> drafter;
  CutBy cut_by = CutBy::nothing;
  // Why layers are not cut by times that were to be measured: "cpu:1 was not measured: its memory
  // ...". Empty: they are, or nobody tried.
  std::string unmeasured;
  double decode_bytes_per_token = 0.0;  // weights and state that one token at context 0 reads
  std::optional<Prediction> predicted;  // absent: nothing was measured
  // Sentences about budgets that are more than there is, or too little for a worker's first expert;
  // a person may know better.
  std::vector<std::string> warnings;
  std::string
      advice;  // a sentence: what other placement is expected to be faster (topology_advice.h)

  std::size_t devices() const { return shards.size() / static_cast<std::size_t>(turns); }
  bool has_gpu() const;
  int threads() const;         // of the CPU shards on this machine, workers' too
  int experts_host() const;    // away from their layers' devices, and the host computes them
  bool experts_leave() const;  // the devices of this process, for the host or workers
  // Predicted peak of the process's host memory, without those of workers.
  std::int64_t total_bytes() const;
};

// The program itself, its libraries, thread stacks and the engine's queues (measured,
// docs/results.md).
inline constexpr std::int64_t kProgramBytes = std::int64_t{12} << 20;
// The same of a worker, which has jobs on their way besides (measured, docs/results.md).
inline constexpr std::int64_t kWorkerBytes = std::int64_t{13} << 20;

// What this process takes besides its devices (Plan::process_bytes).
std::int64_t program_bytes(const Model& model);

// Rows of a prompt that go together through the shards of the devices.
int piece_rows(const ModelSpec& spec, int prefill_chunk, std::span<const DeviceInventory> devices);

// What the KV is stored in where PlanOptions does not say.
KvType default_kv_type(const Model& model, bool f32_weights);

Result<Plan> make_plan(const Model& model, const Inventory& inventory, const PlanOptions& options);

// A step of generation, or of a prompt.
struct DecodeStep {
  KvType kv_type = KvType::f16;
  bool f32_weights = false;
  int depth = 0;  // positions before it
  int rows = 1;
  bool prompt = false;  // the rows are of one sequence, and not each of its own
};
// Weights, recurrent state and KV that a token of it reads. Of several rows: a row's share, with
// experts drawn evenly.
double decode_bytes(const Model& model, const DecodeStep& step);

nlohmann::ordered_json plan_json(const Plan& plan);
std::string plan_table(const Plan& plan);
std::string format_bytes(std::int64_t bytes);  // "1.5 GiB"

}  // namespace tessera
