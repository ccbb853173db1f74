#include "plan/shard_planner.h"

#include <algorithm>

#include "base/checked.h"
#include "device/cpu/cpu_device.h"
#include "device/gpu/gpu_layout.h"
#include "experts/offload_bytes.h"
#include "experts/prefault.h"
#include "plan/expert_workers.h"
#include "plan/footprint.h"
#include "plan/layer_cuts.h"

namespace tessera {
namespace {

// Rows that go through several shards together: few, so that all shards soon have work and soon end
// (a prompt takes the time of one piece longer than of its rows), but enough that a matrix is read
// for several rows.
constexpr int kLeastPieceRows = 128;
constexpr int kMostPieceRows = 512;
constexpr int kRowsPerExpert = 8;
// GPUs decode the weights of all experts once a piece, which takes as long as to compute some 900
// rows with them (docs/results-gpu.md, "Two GPUs"): cutting a chunk of 2,048 in two would cost what
// it gains, and the chunks of a long prompt follow each other through the shards anyway. A chunk
// beside which others generate has more rows and becomes two pieces, so that these do not wait for
// all.
constexpr int kGpuPieceRows = 2048;

bool all_measured(const std::vector<DeviceInventory>& devices, int n_layer) {
  return std::all_of(devices.begin(), devices.end(), [&](const DeviceInventory& device) {
    return device.times && usable(*device.times, n_layer);
  });
}

}  // namespace

int piece_rows(const ModelSpec& spec, int prefill_chunk, std::span<const DeviceInventory> devices) {
  if (devices.size() < 2) return prefill_chunk;
  if (std::all_of(devices.begin(), devices.end(),
                  [](const DeviceInventory& device) { return device.kind != DeviceKind::cpu; }))
    return std::min(kGpuPieceRows, prefill_chunk);
  int rows = kLeastPieceRows;
  for (const LayerSpec& layer : spec.layers)
    if (layer.moe) rows = std::max(rows, kRowsPerExpert * layer.moe->n_expert / layer.moe->n_used);
  return std::min({round_up(rows, 64), kMostPieceRows, prefill_chunk});
}

DrafterUse drafter_use(const ModelSpec& spec, const PlanOptions& options, int context) {
  return {.n_vocab = spec.n_vocab,
          .context = context,
          .parallel = options.parallel,
          .step_rows = options.prefill_chunk + options.parallel};
}

KvType default_kv_type(const Model& model, bool f32_weights) {
  if (f32_weights) return KvType::f32;
  for (const TensorSlice& slice : model.tensors())
    if (block_format(slice.type).elems > 1) return KvType::f16;
  return KvType::f32;
}

ShardPlanner::ShardPlanner(const Model& model, const Inventory& inventory,
                           const PlanOptions& options, const Sizes& sizes)
    : model_(model),
      spec_(model.spec()),
      inventory_(inventory),
      devices_(inventory.devices),
      options_(options),
      sizes_(sizes),
      kv_type_(options.kv_type.value_or(default_kv_type(model, options.f32_weights))),
      legal_(legal_cuts(model.spec())),
      workers_(inventory.expert_workers),
      expert_bytes_(cpu_expert_bytes(model, layout({0, model.spec().n_layer()}))),
      measured_(all_measured(devices_, spec_.n_layer())) {
  if (const auto& drafter = options_.drafter)
    drafter_bytes_ =
        drafter_reserve(*drafter, drafter_use(spec_, options_, sizes_.context)).total();
  load_layers();
  size_workers();
  size_connections();
  size_processes();
}

Result<std::vector<ShardPlan>> ShardPlanner::plan() const {
  TESSERA_TRY(check_cuts());
  TESSERA_ASSIGN(const Ends ends, choose_ends());
  std::vector<ShardPlan> result = shards(ends);
  for (const ShardPlan& shard : result)
    if (shard.free_bytes() < 0) return does_not_fit(result);
  if (const auto own = program(result); own && !own->fits()) return program_lacks(*own);
  if (const Homeless left = homeless(result); left.experts > 0) return workers_lack(left);
  return result;
}

bool ShardPlanner::fits() const {
  if (!check_cuts()) return false;
  const Result<Ends> ends = choose_ends();
  return ends && fit(*ends);
}

ShardLayout ShardPlanner::layout(LayerRange layers) const {
  ShardLayout layout;
  layout.first_layer = layers.begin;
  layout.end_layer = layers.end;
  layout.embedding = layers.begin == 0;
  layout.head = layers.end == spec_.n_layer();
  layout.max_rows = options_.prefill_chunk + options_.parallel;
  if (devices_.size() > 1) layout.max_rows = piece_rows(spec_, layout.max_rows, devices_);
  layout.max_logit_rows = std::max(options_.logit_rows, options_.parallel);
  layout.slots = options_.parallel;
  layout.context = sizes_.context;
  layout.kv_type = kv_type_;
  layout.f32_weights = options_.f32_weights;
  // What a sequence can hold at a time, in each group.
  for (const KvGroup& group : kv_groups(spec_)) {
    int pages = ceil_div(sizes_.context, kPageTokens);
    if (group.window > 0)
      pages = std::min(pages, window_pages(group.window, options_.prefill_chunk));
    layout.kv_pages.push_back(options_.parallel * pages);
  }
  return layout;
}

// Whether the rows may pass from the device to the next one without the host: GPUs of one vendor in
// this process.
bool ShardPlanner::neighbours_on_gpus(int device) const {
  const auto at = static_cast<std::size_t>(device);
  if (at + 1 >= devices_.size()) return false;
  const DeviceInventory &one = devices_[at], &next = devices_[at + 1];
  return one.kind != DeviceKind::cpu && one.kind == next.kind && !one.remote && !next.remote;
}

ShardPlan ShardPlanner::shard(int device, LayerRange layers, Residents residents) const {
  std::vector<std::int64_t> room = worker_room_;
  return shard(device, layers, residents, budget(device), room);
}

ShardPlan ShardPlanner::shard(int device, LayerRange layers, Residents residents,
                              std::int64_t budget, std::vector<std::int64_t>& room) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  ShardPlan shard;
  shard.device = on.name;
  shard.remote = on.remote;
  shard.here = on.here;
  shard.kind = on.kind;
  shard.number = on.number;
  shard.threads = on.threads;
  shard.cpus = on.cpus;
  shard.bytes_per_s = on.bytes_per_s;
  shard.op_per_s = on.op_per_s;
  shard.layout = layout(layers);
  if (options_.table == PlanOptions::Table::host && may_leave_table(on) &&
      has_table_alone(spec_, shard.layout))
    shard.layout.table_device_rows = 0;
  if (!shard.layout.head && neighbours_on_gpus(device))
    shard.layout.kept_pieces = ring_pieces(static_cast<int>(devices_.size()));
  if (measured_) shard.time = span_time(*on.times, layers);
  set_bytes(shard);
  shard.connection_bytes = connection_bytes(device, may_serve_);
  if (shard.layout.head) shard.drafter_bytes = drafter_bytes_;
  // A worker has its connection instead.
  if (devices_.size() > 1 && !on.remote) shard.handoff_bytes = handoff_bytes(spec_, shard.layout);
  if (on.remote)
    shard.host_bytes = kWorkerBytes;
  else if (static_cast<std::size_t>(device) == first_cpu_here())
    shard.host_bytes = saturated_add(sizes_.process_bytes, gpu_bytes_);
  shard.budget_bytes = budget;
  shard.bounded = on.budget || on.most;
  for (int l = layers.begin; l < layers.end; ++l) {
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(l)];
    shard.experts += layer.moe ? layer.moe->n_expert : 0;
  }
  if (residents != Residents::all && !options_.expert_resident) leave_table(on, shard);
  const bool may_leave =
      on.has_file && (on.kind == DeviceKind::cpu || gpu_experts_may_leave(spec_));
  if (shard.experts > 0 && may_leave && residents != Residents::all &&
      (sizes_.leave != Leave::nothing || options_.expert_resident))
    place_experts(shard, residents, room);
  if (residents != Residents::all) leave_table(on, shard);
  if (sizes_.leave == Leave::weights && may_leave_weights(on) && residents != Residents::all)
    leave_weights(shard, residents, room);
  return shard;
}

// The bytes of the layout as it is.
void ShardPlanner::set_bytes(ShardPlan& shard) const {
  const Footprint bytes = footprint(model_, shard.layout, shard.kind, shard.threads);
  shard.weight_bytes = bytes.weights;
  shard.kv_bytes = bytes.kv;
  shard.recurrent_bytes = bytes.recurrent;
  shard.scratch_bytes = bytes.scratch;
  set_buffers(shard);
}

// Of its process's memory, for experts away and a GPU.
void ShardPlanner::set_buffers(ShardPlan& shard) const {
  const bool gpu = shard.kind != DeviceKind::cpu;
  shard.offload_bytes = offload_bytes(model_, shard.layout, {.threads = shard.threads, .own = gpu});
  shard.staging_bytes = gpu ? gpu_staging(spec_, shard.layout).total() : 0;
  const bool locks = options_.lock_experts && !shard.remote;
  shard.locked_bytes = locks ? locked_bytes(model_, shard.layout) : 0;
  shard.table_bytes = gpu ? gpu_table_bytes(model_, shard.layout) : 0;
  shard.streamed_bytes = gpu ? gpu_streamed_bytes(model_, shard.layout) : 0;
}

// They follow from what every cut leaves as it is, so that each shard is planned with them.
void ShardPlanner::size_connections() {
  const int n = static_cast<int>(devices_.size());
  for (int i = 0; i < n; ++i) {
    const auto& connection = devices_[static_cast<std::size_t>(i)].connection;
    const LayerRange layers{i == 0 ? 0 : 1, i + 1 == n ? spec_.n_layer() : 1};
    connections_.push_back(connection ? connection(layout(layers)) : ConnectionBytes{});
  }
  const bool leave = sizes_.leave != Leave::nothing || options_.expert_resident;
  for (const std::int64_t room : worker_room_) may_serve_.push_back(leave && room > 0);
}

// `serving`: the workers of experts that are connected to.
std::int64_t ShardPlanner::connection_bytes(int device, const std::vector<bool>& serving) const {
  const auto remote = [](const DeviceInventory& on) { return on.remote; };
  if (devices_[static_cast<std::size_t>(device)].remote)
    return connections_[static_cast<std::size_t>(device)].there;
  if (!std::all_of(devices_.begin(), devices_.begin() + device, remote)) return 0;
  return connections_here(serving);
}

std::int64_t ShardPlanner::connections_here(const std::vector<bool>& serving) const {
  std::int64_t bytes = 0;
  for (const ConnectionBytes& connection : connections_)
    bytes = saturated_add(bytes, connection.here);
  for (std::size_t w = 0; w < workers_.size(); ++w)
    if (serving[w]) bytes = saturated_add(bytes, worker_connections_[w].here);
  return bytes;
}

// What a range may use at most, whatever the other devices get.
std::int64_t ShardPlanner::budget(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  if (on.budget) return *on.budget;
  // While nothing leaves, shards() sees to it that all of them fit.
  std::int64_t left =
      sizes_.leave == Leave::nothing ? free_memory(device) : unbudgeted_memory(device);
  if (sizes_.leave == Leave::nothing && on.memory == kHostMemory)
    left = saturated_rest(left, {most_besides()});
  return std::min(left, on.most.value_or(left));
}

// What the budgets of others leave of a device's memory.
std::int64_t ShardPlanner::unbudgeted_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  std::int64_t left = free_memory(device);
  if (on.memory == kHostMemory) left = saturated_rest(left, {kept_for_workers_, most_besides()});
  for (const DeviceInventory& other : devices_)
    if (other.memory == on.memory) left = saturated_rest(left, {other.budget.value_or(0)});
  return left;
}

// What each device may use for its range. Of memory that they share, while weights may leave, those
// without a budget get by need: what they must hold, and of what is left parts as large as what
// their ranges could use of it.
std::vector<std::int64_t> ShardPlanner::budgets(const Ends& ends) const {
  std::vector<std::int64_t> budgets, least;
  std::vector<double> more;
  for (const LayerRange layers : ranges_of(ends)) {
    const int device = static_cast<int>(budgets.size());
    budgets.push_back(budget(device));
    if (sizes_.leave == Leave::nothing) continue;
    const ShardPlan all = shard(device, layers, Residents::all);
    least.push_back(least_bytes(device, layers));
    more.push_back(static_cast<double>(saturated_rest(all.charged_bytes(), {least.back()})));
  }
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (devices_[i].budget) continue;
    std::int64_t left = unbudgeted_memory(static_cast<int>(i));
    double parts = 0.0;
    for (std::size_t j = 0; j < least.size(); ++j) {
      if (devices_[j].budget || devices_[j].memory != devices_[i].memory) continue;
      left = saturated_rest(left, {least[j]});
      parts += more[j];
    }
    budgets[i] = least[i];
    if (parts > 0.0)
      budgets[i] =
          saturated_add(budgets[i], saturated_trunc(static_cast<double>(left) * (more[i] / parts)));
    budgets[i] = std::min(budgets[i], devices_[i].most.value_or(budgets[i]));
  }
  return budgets;
}

// With as much as can leave it left to the file and to workers.
std::int64_t ShardPlanner::least_bytes(int device, LayerRange layers) const {
  std::vector<std::int64_t> room = worker_room_;
  const ShardPlan least = shard(device, layers, Residents::least, /*budget=*/0, room);
  return least.charged_bytes();
}

// Memory may be shared with a display or another processor, and then a probe can report more free
// than there is.
std::int64_t ShardPlanner::free_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const std::int64_t most = on.memory_total > 0 ? on.memory_total : on.memory_free;
  return std::clamp<std::int64_t>(on.memory_free, 0, std::max<std::int64_t>(0, most));
}

// GPUs first: what their experts away take of this process is a CPU device's to hold.
std::vector<ShardPlan> ShardPlanner::placed(const Ends& ends) const {
  const std::vector<LayerRange> ranges = ranges_of(ends);
  const std::vector<std::int64_t> most = budgets(ends);
  std::vector<ShardPlan> result(ranges.size());
  std::vector<std::int64_t> room = worker_room_;
  const auto place = [&](std::size_t i, std::int64_t less) {
    result[i] = shard(static_cast<int>(i), ranges[i], Residents::best,
                      saturated_rest(most[i], {less}), room);
    result[i].budget_bytes = most[i];
  };
  for (std::size_t i = 0; i < result.size(); ++i)
    if (is_gpu_here(i)) place(i, 0);
  const std::int64_t more = saturated_rest(gpu_bytes(result), {gpu_bytes_});
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!is_gpu_here(i)) place(i, i == first_cpu_here() ? std::max<std::int64_t>(0, more) : 0);
  return result;
}

std::vector<ShardPlan> ShardPlanner::shards(const Ends& ends) const {
  std::vector<ShardPlan> result = placed(ends);
  const std::vector<ExpertWorkerPlan> experts =
      plan_expert_workers(model_, workers_, result, jobs());
  std::vector<bool> serving;
  for (const ExpertWorkerPlan& worker : experts) serving.push_back(worker.experts > 0);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i].connection_bytes = connection_bytes(static_cast<int>(i), serving);
  if (const std::size_t first = first_cpu_here(); first < result.size())
    result[first].host_bytes = saturated_add(sizes_.process_bytes, gpu_bytes(result));
  std::int64_t besides = this->besides(result, experts);
  if (const auto own = program_)
    besides =
        saturated_sum({besides, own->program_bytes, own->connection_bytes, gpu_bytes(result)});
  // Of memory that they share, a device without a budget may use what the others leave.
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (devices_[i].budget) continue;
    result[i].budget_bytes = free_memory(static_cast<int>(i));
    std::int64_t& left = result[i].budget_bytes;
    if (devices_[i].memory == kHostMemory) left = saturated_rest(left, {besides});
    for (std::size_t j = 0; j < result.size(); ++j)
      if (j != i && devices_[j].memory == devices_[i].memory)
        left = saturated_rest(left, {result[j].charged_bytes()});
    if (const auto most = devices_[i].most) left = std::min(left, *most);
  }
  return result;
}

}  // namespace tessera
