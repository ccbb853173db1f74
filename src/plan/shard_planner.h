// ShardPlanner: the layers and bytes of each device for one context length. Part of make_plan.
//
//   ShardPlanner planner(model, inventory, options, {.context = 4096, .process_bytes = bytes});
//   TESSERA_ASSIGN(std::vector<ShardPlan> shards, planner.plan());
//
// A layer's time is the measured one where every device has its times; else it is taken to be the
// bytes of weights that one row reads of it, over the device's threads. The head is then left out:
// a prompt needs it for one row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tessera {

// How much of a drafter's work the plan allows.
DrafterUse drafter_use(const ModelSpec& spec, const PlanOptions& options, int context);

class ShardPlanner {
 public:
  // What may leave the devices' memory: nothing; rows of the embedding table of a GPU here, for
  // the host's memory, and experts, for the file or workers; and then, of CPU devices, the other
  // weights for the file.
  enum class Leave { nothing, experts, weights };
  struct Sizes {
    int context = 0;
    std::int64_t process_bytes = 0;
    Leave leave = Leave::nothing;
    // Workers of experts may be given some. Their connections take memory of the devices too.
    bool expert_workers = true;
  };
  ShardPlanner(const Model& model, const Inventory& inventory, const PlanOptions& options,
               const Sizes& sizes);

  // ErrorCode::exhausted where memory lacks, ErrorCode::invalid where the layers cannot be split
  // so.
  Result<std::vector<ShardPlan>> plan() const;

  // Whether plan() has one.
  bool fits() const;

  // This process beside these shards; nothing where one of them is charged with it.
  std::optional<ProgramPlan> program(const std::vector<ShardPlan>& shards) const;

  // After ErrorCode::exhausted: the budgets that would do, "a budget of 213 MiB for cpu:0"; empty
  // where budgets are not what lacks.
  std::string enough() const;
  // And what several devices hold, "together the devices hold 33 of 40 layers"; empty for one, or
  // where they hold all in another cut.
  std::string held() const;

  // Whether its embedding table may lie on the host instead.
  static bool may_leave_table(const DeviceInventory& device);
  // Whether weights of its layers besides experts may stay in the file.
  static bool may_leave_weights(const DeviceInventory& device);

 private:
  using Ends = std::vector<int>;

  ShardLayout layout(LayerRange layers) const;
  void leave_table(const DeviceInventory& device, ShardPlan& shard) const;
  // Where not all fits: the experts that make a token cheapest, and what fits of the other weights;
  // or (much sooner) as little as the device must hold, enough to know whether a range does; or all
  // the same.
  enum class Residents { best, least, all };
  ShardPlan shard(int device, LayerRange layers, Residents residents) const;
  ShardPlan shard(int device, LayerRange layers, Residents residents, std::int64_t budget,
                  std::vector<std::int64_t>& room) const;
  bool neighbours_on_gpus(int device) const;
  void set_bytes(ShardPlan& shard) const;
  void set_buffers(ShardPlan& shard) const;
  void size_connections();
  std::int64_t connection_bytes(int device, const std::vector<bool>& serving) const;
  std::int64_t connections_here(const std::vector<bool>& serving) const;
  std::int64_t budget(int device) const;
  std::int64_t free_memory(int device) const;
  std::int64_t unbudgeted_memory(int device) const;
  std::int64_t least_bytes(int device, LayerRange layers) const;
  std::vector<std::int64_t> budgets(const Ends& ends) const;
  std::vector<ShardPlan> placed(const Ends& ends) const;
  std::vector<ShardPlan> shards(const Ends& ends) const;

  // program_planner.cc
  bool is_gpu_here(std::size_t device) const;
  bool is_gpu_worker_here(std::size_t device) const;
  std::size_t first_cpu_here() const;
  void size_processes();
  std::int64_t most_buffers(std::size_t device) const;
  std::int64_t gpu_bytes(const std::vector<ShardPlan>& shards) const;
  std::int64_t workers_here(std::span<const ExpertWorkerPlan> workers) const;
  std::int64_t besides(const std::vector<ShardPlan>& shards,
                       std::span<const ExpertWorkerPlan> workers) const;
  std::int64_t most_besides() const;
  std::optional<std::int64_t> machine_memory() const;
  Error program_lacks(const ProgramPlan& program) const;
  std::string enough_for_program(const Ends& ends) const;

  // cut_planner.cc
  Status check_cuts() const;
  Result<Ends> choose_ends() const;
  // [device][begin]: where the longest range ends that the device can hold by itself.
  using RangeLimits = std::vector<std::vector<int>>;
  // With an equal part of a GPU for each of its ranges, if `divided`.
  RangeLimits range_limits(bool divided = false) const;
  std::int64_t ranges_of_gpu(int device) const;
  std::int64_t most_ranges() const;
  // Bytes that one row reads of each layer, and a token of the head.
  struct LayerReads {
    std::vector<double> others;  // than experts
    std::vector<double> experts;
    std::vector<double> before;  // of both, of the layers before each, and of all
    double head = 0.0;
    double packed = 0.0;  // of the model's bytes the share that is packed anew where it is left
  };
  LayerReads layer_reads() const;
  // Bytes of memory that a device takes for a model.
  struct Holding {
    struct Layer {
      std::int64_t others = 0;  // weights besides experts
      std::int64_t experts = 0;
      std::int64_t state = 0;
    };
    std::vector<Layer> layers;
    std::int64_t embedding = 0;
    std::int64_t head = 0;
    std::int64_t beside = 0;       // scratch, buffers and the program
    std::int64_t beside_left = 0;  // the same where something leaves
  };
  // What balanced_ends() heeds; nothing where that is absent.
  struct CutLimits {
    const RangeLimits* ranges = nullptr;
    const std::vector<Holding>* held = nullptr;  // of each device; empty: nothing leaves
  };
  StepTime range_time(int device, LayerRange layers, const LayerReads& reads,
                      const Holding* holding) const;
  // Seconds that a byte of memory that several devices share counts as, and by device the bytes
  // before each layer; of one that does not share, none.
  struct MemoryPrice {
    double byte_s = 0.0;
    std::vector<std::vector<double>> before;
  };
  std::vector<double> least_before(int device) const;
  // The fastest cut; with limits, none of whose ranges is too much for its device by itself.
  std::optional<Ends> balanced_ends(const CutLimits& limits, const MemoryPrice& price) const;
  std::optional<Ends> frugal_ends(const CutLimits& limits) const;
  bool fit(const Ends& ends) const;
  bool shares_memory(int device) const;

  // leave_costs.cc
  std::vector<Holding> holdings() const;
  Holding holding_of(DeviceKind kind) const;
  // Of what one row and one token read, what has left the device's memory.
  struct LeftReads {
    double row = 0.0;
    double token = 0.0;
  };
  LeftReads left_reads(int device, LayerRange layers, const Holding& holding,
                       const LayerReads& reads) const;

  // expert_planner.cc; `room` is what is left of worker_room_.
  void load_layers();
  void size_workers();
  std::int64_t gpu_room(std::int64_t room) const;
  ExpertJobs jobs() const;
  void place_experts(ShardPlan& shard, Residents residents, std::vector<std::int64_t>& room) const;
  ExpertLoad expert_load(const ShardPlan& shard) const;
  // Experts that would be the host's, where workers are required.
  struct Homeless {
    int experts = 0;
    std::int64_t bytes = 0;
  };
  Homeless homeless(const std::vector<ShardPlan>& shards) const;
  std::optional<std::vector<int>> choose_residents(const ExpertLoad& load, const ShardPlan& shard,
                                                   bool stream) const;
  void set_worker_uses(const ExpertLoad& load, ShardPlan& shard) const;
  void set_experts(const ExpertLoad& load, std::span<const int> residents,
                   std::vector<std::int64_t>& room, ShardPlan& shard) const;

  // stream_planner.cc
  bool may_stream(const ShardPlan& shard) const;
  void stream_experts(ShardPlan& shard) const;
  std::optional<std::int64_t> pinned_room() const;

  // file_planner.cc
  void leave_weights(ShardPlan& shard, Residents residents, std::vector<std::int64_t>& room) const;

  // shortage.cc
  std::string budget_text(int device, std::int64_t budget) const;
  Error does_not_fit(const std::vector<ShardPlan>& shards) const;
  Error workers_lack(const Homeless& homeless) const;
  std::string enough_workers(const Ends& ends, std::span<const std::int64_t> least) const;
  std::vector<std::int64_t> least_with_workers(const Ends& ends) const;
  int layers_that_fit() const;
  std::optional<ShardPlan> longest_shard(int device, LayerRange left, std::int64_t shared) const;

  const Model& model_;
  const ModelSpec& spec_;
  const Inventory& inventory_;
  const std::vector<DeviceInventory>& devices_;
  const PlanOptions& options_;
  Sizes sizes_;
  KvType kv_type_;
  std::vector<bool> legal_;
  const std::vector<ExpertWorkerInventory>& workers_;
  std::vector<std::int64_t> expert_bytes_;      // of one expert of each layer, as a device holds it
  std::vector<std::int64_t> gpu_expert_bytes_;  // likewise, as a GPU does
  std::vector<ExpertLayerLoad> layer_loads_;    // of every layer
  std::vector<std::int64_t> expert_file_bytes_;      // likewise, of one expert in the model's file
  std::vector<std::int64_t> worker_room_;            // for experts, of each of workers_
  std::int64_t kept_for_workers_ = 0;                // of this machine's memory
  std::vector<ConnectionBytes> connections_;         // of each device
  std::vector<ConnectionBytes> worker_connections_;  // of each of workers_, with experts
  std::vector<bool> may_serve_;                      // workers_ that may be given experts
  std::optional<ProgramPlan> program_;               // where no CPU device is here, at most
  std::int64_t gpu_bytes_ = 0;      // of this process, at most, beside what is locked for GPUs
  std::int64_t gpu_workers_ = 0;    // of processes of workers here that have a GPU, at most
  std::int64_t drafter_bytes_ = 0;  // kept for a drafter, with the head
  bool measured_;                   // every device has its times
};

}  // namespace tessera
