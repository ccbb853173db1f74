#include "plan/shard_planner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "device/cpu/cpu_device.h"
#include "device/gpu/gpu_layout.h"
#include "experts/offload_bytes.h"
#include "plan/expert_workers.h"
#include "plan/layer_cuts.h"

namespace tessera {
namespace {

// Rows that go through several shards together: few, so that all shards soon have work and soon end
// (a prompt takes the time of one piece longer than of its rows), but enough that a matrix is read
// for several rows.
constexpr int kLeastPieceRows = 128;
constexpr int kMostPieceRows = 512;
constexpr int kRowsPerExpert = 8;

// Pages that one sequence of `context` positions can hold at a time in a group.
int pages_of_sequence(int window, int context, int chunk) {
  const int all = ceil_div(context, kPageTokens);
  if (window == 0) return all;
  return std::min(all, window_pages(window, chunk));
}

// Weight bytes that one row reads of each layer.
std::vector<double> layer_costs(const Model& model, bool f32_weights) {
  std::vector<double> costs(model.spec().layers.size(), 0.0);
  for (const TensorSlice& slice : model.tensors()) {
    if (slice.layer < 0) continue;
    const auto layer = static_cast<std::size_t>(slice.layer);
    const BlockType type = f32_weights ? BlockType::F32 : slice.type;
    double bytes =
        static_cast<double>(slice.rows) * static_cast<double>(row_bytes(type, slice.cols));
    if (slice.matrices > 1) bytes *= model.spec().layers[layer].moe->n_used;
    costs[layer] += bytes;
  }
  return costs;
}

std::string range_text(const ShardLayout& layout) {
  return fmt::format("layers {}-{}", layout.first_layer, layout.end_layer - 1);
}

const char* largest_part(const ShardPlan& shard) {
  const std::pair<std::int64_t, const char*> parts[] = {
      {shard.weight_bytes, "the weights are"},
      {shard.kv_bytes, "the KV is"},
      {shard.recurrent_bytes, "the recurrent state is"},
      {shard.scratch_bytes + shard.buffer_bytes(), "scratch is"},
      {shard.host_bytes, "the program is"}};
  return std::max_element(std::begin(parts), std::end(parts))->second;
}

bool all_measured(const std::vector<DeviceInventory>& devices, int n_layer) {
  return std::all_of(devices.begin(), devices.end(), [&](const DeviceInventory& device) {
    return device.times && usable(*device.times, n_layer);
  });
}

}  // namespace

int piece_rows(const ModelSpec& spec, int prefill_chunk, std::size_t devices) {
  if (devices < 2) return prefill_chunk;
  int rows = kLeastPieceRows;
  for (const LayerSpec& layer : spec.layers)
    if (layer.moe) rows = std::max(rows, kRowsPerExpert * layer.moe->n_expert / layer.moe->n_used);
  return std::min({round_up(rows, 64), kMostPieceRows, prefill_chunk});
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
      devices_(inventory.devices),
      options_(options),
      sizes_(sizes),
      kv_type_(options.kv_type.value_or(default_kv_type(model, options.f32_weights))),
      legal_(legal_cuts(model.spec())),
      workers_(inventory.expert_workers),
      expert_bytes_(cpu_expert_bytes(model, layout(0, model.spec().n_layer()))),
      measured_(all_measured(devices_, spec_.n_layer())) {
  load_layers();
  size_workers();
}

Result<std::vector<ShardPlan>> ShardPlanner::plan() const {
  TESSERA_TRY(check_cuts());
  TESSERA_ASSIGN(const Ends ends, choose_ends());
  std::vector<ShardPlan> result = shards(ends);
  for (const ShardPlan& shard : result)
    if (shard.free_bytes() < 0) return does_not_fit(result);
  return result;
}

bool ShardPlanner::fits() const {
  if (!check_cuts()) return false;
  const Result<Ends> ends = choose_ends();
  return ends && fit(*ends);
}

// Whether there can be that many shards at all.
Status ShardPlanner::check_cuts() const {
  const auto most = std::count(legal_.begin() + 1, legal_.end(), true);
  const auto n = static_cast<std::ptrdiff_t>(devices_.size());
  if (n <= most) return {};
  if (most == spec_.n_layer())
    return Error::make(ErrorCode::invalid, "--target-devices: {} devices for {} layers", n, most);
  return Error::make(ErrorCode::invalid,
                     "--target-devices: {} devices, but layers that share their KV stay together, "
                     "which leaves {} parts",
                     n, most);
}

Result<ShardPlanner::Ends> ShardPlanner::choose_ends() const {
  const int n = static_cast<int>(devices_.size());
  if (n == 1 && options_.layer_weights.empty()) return Ends{spec_.n_layer()};
  if (options_.layer_weights.empty()) {
    bool shared = false;
    for (int i = 0; i < n; ++i) shared |= shares_memory(i);
    const RangeLimits limits = range_limits();
    const std::optional<Ends> ends = balanced_ends(&limits, {});
    if (ends && (!shared || fit(*ends))) return *ends;
    if (shared)
      if (const std::optional<Ends> frugal = frugal_ends(limits)) return *frugal;
    return ends ? *ends : *balanced_ends(nullptr, {});  // plan() says what lacks
  }
  if (options_.layer_weights.size() != devices_.size())
    return Error::make(ErrorCode::invalid, "--target-layer-split: {} weights for {} devices",
                       options_.layer_weights.size(), n);
  Result<Ends> wanted = ends_by_weights(spec_.n_layer(), options_.layer_weights);
  if (!wanted) return std::move(wanted).error().in("--target-layer-split");
  return *best_ends(legal_, n, nearest_to(*std::move(wanted)));
}

std::optional<ShardPlanner::Ends> ShardPlanner::balanced_ends(const RangeLimits* limits,
                                                              const MemoryPrice& price) const {
  std::vector<double> before(legal_.size(), 0.0);
  const std::vector<double> costs = layer_costs(model_, options_.f32_weights);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  const auto range_time = [&](int device, int begin, int end) {
    const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
    if (measured_) return span_time(*on.times, begin, end, spec_.n_layer());
    const double share =
        (before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)]) /
        before.back() / (on.speed > 0.0 ? on.speed : on.threads);
    return StepTime{.prompt_row_s = share, .token_s = share};
  };
  const auto time = [&](int device, int begin, int end) -> std::optional<StepTime> {
    const auto i = static_cast<std::size_t>(device), from = static_cast<std::size_t>(begin);
    if (limits != nullptr && end > (*limits)[i][from]) return std::nullopt;
    StepTime time = range_time(device, begin, end);
    if (i < price.before.size() && !price.before[i].empty())
      time.token_s +=
          price.byte_s * (price.before[i][static_cast<std::size_t>(end)] - price.before[i][from]);
    return time;
  };
  return fastest_ends(legal_, static_cast<int>(devices_.size()), time, options_.prompt_ratio);
}

// A shorter range needs no more than a longer one, so each end is looked for from the one before.
ShardPlanner::RangeLimits ShardPlanner::range_limits() const {
  const int n = static_cast<int>(devices_.size()), n_layer = spec_.n_layer();
  RangeLimits limits(devices_.size(), std::vector<int>(legal_.size(), 0));
  for (int device = 0; device < n; ++device) {
    const auto holds = [&](int begin, int end) {
      return shard(device, begin, end, Residents::least).free_bytes() >= 0;
    };
    const int last = device == 0 ? 0 : n_layer - (n - device);  // where its range begins at most
    int begin = device, end = device;
    // The last device needs to hold all that is left, the others as much as they can.
    if (device + 1 == n) {
      for (int high = n_layer; begin < high;) {
        const int middle = (begin + high) / 2;
        holds(middle, n_layer) ? high = middle : begin = middle + 1;
      }
      end = n_layer;
    } else {
      for (int high = n_layer; end < high;) {
        const int middle = (end + high + 1) / 2;
        holds(begin, middle) ? end = middle : high = middle - 1;
      }
    }
    for (; begin <= last; ++begin) {
      end = std::max(end, begin);
      while (end < n_layer && begin > device && holds(begin, end + 1)) ++end;
      limits[static_cast<std::size_t>(device)][static_cast<std::size_t>(begin)] = end;
    }
  }
  return limits;
}

// [l]: what layers before `l` take of the device's memory at least. Scratch is left out: it is of
// the largest layer, and hardly depends on the cut.
std::vector<double> ShardPlanner::least_before(int device) const {
  std::vector<double> before = {0.0};
  std::vector<std::int64_t> room = worker_room_;
  for (int l = 0; l < spec_.n_layer(); ++l) {
    const ShardPlan layer = shard(device, l, l + 1, Residents::least, /*budget=*/0, room);
    before.push_back(before.back() + static_cast<double>(layer.weight_bytes + layer.kv_bytes +
                                                         layer.recurrent_bytes));
  }
  return before;
}

// Where ranges that fit one by one are together too much for memory that their devices share: the
// first cut that is not, of those for which that memory counts as dearer and dearer.
std::optional<ShardPlanner::Ends> ShardPlanner::frugal_ends(const RangeLimits& limits) const {
  constexpr double kFirst = 1e-16, kLast = 1e3, kFactor = 10.0;
  MemoryPrice price{.byte_s = kLast, .before = {}};
  for (int i = 0; i < static_cast<int>(devices_.size()); ++i)
    price.before.push_back(shares_memory(i) ? least_before(i) : std::vector<double>());
  const std::optional<Ends> least = balanced_ends(&limits, price);
  if (!least || !fit(*least)) return std::nullopt;
  for (price.byte_s = kFirst; price.byte_s < kLast; price.byte_s *= kFactor)
    if (const std::optional<Ends> ends = balanced_ends(&limits, price); ends && fit(*ends))
      return ends;
  return least;
}

bool ShardPlanner::fit(const Ends& ends) const {
  const std::vector<ShardPlan> all = shards(ends);
  return std::all_of(all.begin(), all.end(),
                     [](const ShardPlan& shard) { return shard.free_bytes() >= 0; });
}

// Whether it has no budget, and others take of its memory too.
bool ShardPlanner::shares_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const auto with = std::count_if(devices_.begin(), devices_.end(),
                                  [&](const auto& other) { return other.memory == on.memory; });
  return !on.budget && with > 1;
}

ShardLayout ShardPlanner::layout(int begin, int end) const {
  ShardLayout layout;
  layout.first_layer = begin;
  layout.end_layer = end;
  layout.embedding = begin == 0;
  layout.head = end == spec_.n_layer();
  layout.max_rows = options_.prefill_chunk + options_.parallel;
  if (devices_.size() > 1) layout.max_rows = piece_rows(spec_, layout.max_rows, devices_.size());
  layout.max_logit_rows = std::max(options_.logit_rows, options_.parallel);
  layout.slots = options_.parallel;
  layout.context = sizes_.context;
  layout.kv_type = kv_type_;
  layout.f32_weights = options_.f32_weights;
  for (const KvGroup& group : kv_groups(spec_))
    layout.kv_pages.push_back(options_.parallel * pages_of_sequence(group.window, sizes_.context,
                                                                    options_.prefill_chunk));
  return layout;
}

ShardPlan ShardPlanner::shard(int device, int begin, int end, Residents residents) const {
  std::vector<std::int64_t> room = worker_room_;
  return shard(device, begin, end, residents, budget(device), room);
}

ShardPlan ShardPlanner::shard(int device, int begin, int end, Residents residents,
                              std::int64_t budget, std::vector<std::int64_t>& room) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  ShardPlan shard;
  shard.device = on.name;
  shard.remote = on.remote;
  shard.kind = on.kind;
  shard.number = on.number;
  shard.threads = on.threads;
  shard.cpus = on.cpus;
  shard.layout = layout(begin, end);
  if (measured_) shard.time = span_time(*on.times, begin, end, spec_.n_layer());
  set_bytes(shard);
  shard.connection_bytes = on.connection_bytes;
  if (devices_.size() > 1) {
    const std::int64_t pieces = begin > 0 ? kPiecesPerBoundary : 1;  // the first fills one
    shard.handoff_bytes =
        pieces * shard.layout.max_rows * spec_.n_embd * std::int64_t{sizeof(float)};
    if (shard.layout.head)
      shard.handoff_bytes +=
          std::int64_t{shard.layout.max_logit_rows} * spec_.n_vocab * std::int64_t{sizeof(float)};
  }
  const bool before =
      std::any_of(devices_.begin(), devices_.begin() + device,
                  [](const DeviceInventory& d) { return !d.remote && d.kind == DeviceKind::cpu; });
  if (on.kind != DeviceKind::cpu) {
    shard.host_bytes = 0;  // its memory is not the process's
  } else if (on.remote) {
    shard.host_bytes = kWorkerBytes;
  } else if (!before) {
    shard.host_bytes = sizes_.process_bytes;
  }
  shard.budget_bytes = budget;
  for (int l = begin; l < end; ++l) {
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(l)];
    shard.experts += layer.moe ? layer.moe->n_expert : 0;
  }
  const bool may_leave =
      on.has_file && (on.kind == DeviceKind::cpu || gpu_experts_may_leave(spec_));
  if (shard.experts > 0 && may_leave && residents != Residents::all &&
      (sizes_.leave != Leave::nothing || options_.expert_resident))
    place_experts(shard, residents, room);
  if (sizes_.leave == Leave::weights && may_leave_weights(on) && residents != Residents::all)
    leave_weights(shard, residents, room);
  return shard;
}

// The bytes of the layout as it is.
void ShardPlanner::set_bytes(ShardPlan& shard) const {
  const auto take = [&](const auto& bytes) {
    shard.weight_bytes = bytes.weights;
    shard.kv_bytes = bytes.kv;
    shard.recurrent_bytes = bytes.recurrent;
    shard.scratch_bytes = bytes.scratch;
  };
  if (shard.kind == DeviceKind::cpu) {
    take(cpu_footprint(model_, shard.layout, shard.threads));
  } else {
    take(gpu_footprint(model_, shard.layout));
  }
  shard.offload_bytes = offload_bytes(model_, shard.layout, shard.threads);
}

// What a range may use at most, whatever the other devices get.
std::int64_t ShardPlanner::budget(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  if (on.budget) return *on.budget;
  // While nothing leaves, shards() sees to it that all of them fit.
  const std::int64_t left =
      sizes_.leave == Leave::nothing ? free_memory(device) : unbudgeted_memory(device);
  return std::min(left, on.most.value_or(left));
}

// What the budgets of others leave of a device's memory.
std::int64_t ShardPlanner::unbudgeted_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  std::int64_t left = free_memory(device);
  if (on.memory == kHostMemory) left -= kept_for_workers_;
  for (const DeviceInventory& other : devices_)
    if (other.memory == on.memory) left -= other.budget.value_or(0);
  return left;
}

// What each device may use for its range. Of memory that they share, while weights may leave, those
// without a budget get by need: what they must hold, and of what is left parts as large as what
// their ranges could use of it.
std::vector<std::int64_t> ShardPlanner::budgets(const Ends& ends) const {
  std::vector<std::int64_t> budgets, least;
  std::vector<double> more;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const int device = static_cast<int>(i), begin = i == 0 ? 0 : ends[i - 1];
    budgets.push_back(budget(device));
    if (sizes_.leave == Leave::nothing) continue;
    const ShardPlan all = shard(device, begin, ends[i], Residents::all);
    least.push_back(least_bytes(device, begin, ends[i]));
    more.push_back(static_cast<double>(all.total_bytes() + all.host_bytes - least.back()));
  }
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (devices_[i].budget) continue;
    std::int64_t left = unbudgeted_memory(static_cast<int>(i));
    double parts = 0.0;
    for (std::size_t j = 0; j < least.size(); ++j) {
      if (devices_[j].budget || devices_[j].memory != devices_[i].memory) continue;
      left -= least[j];
      parts += more[j];
    }
    budgets[i] = least[i];
    if (parts > 0.0)
      budgets[i] += static_cast<std::int64_t>(static_cast<double>(left) * (more[i] / parts));
    budgets[i] = std::min(budgets[i], devices_[i].most.value_or(budgets[i]));
  }
  return budgets;
}

// With as much as can leave it left to the file and to workers.
std::int64_t ShardPlanner::least_bytes(int device, int begin, int end) const {
  std::vector<std::int64_t> room = worker_room_;
  const ShardPlan least = shard(device, begin, end, Residents::least, /*budget=*/0, room);
  return least.total_bytes() + least.host_bytes;
}

// Memory may be shared with a display or another processor, and then a probe can report more free
// than there is.
std::int64_t ShardPlanner::free_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const std::int64_t most = on.memory_total > 0 ? on.memory_total : on.memory_free;
  return std::clamp<std::int64_t>(on.memory_free, 0, std::max<std::int64_t>(0, most));
}

std::vector<ShardPlan> ShardPlanner::shards(const Ends& ends) const {
  std::vector<ShardPlan> result;
  std::vector<std::int64_t> room = worker_room_;
  const std::vector<std::int64_t> most = budgets(ends);
  int begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    result.push_back(shard(static_cast<int>(i), begin, ends[i], Residents::best, most[i], room));
    begin = ends[i];
  }
  std::int64_t workers = 0;  // of experts, in this machine's memory
  for (const ExpertWorkerPlan& worker : plan_expert_workers(model_, workers_, result, job_rows()))
    if (worker.here) workers += worker.total_bytes() + worker.host_bytes;
  // Of memory that they share, a device without a budget may use what the others leave.
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (devices_[i].budget) continue;
    result[i].budget_bytes = free_memory(static_cast<int>(i));
    if (devices_[i].memory == kHostMemory) result[i].budget_bytes -= workers;
    for (std::size_t j = 0; j < result.size(); ++j)
      if (j != i && devices_[j].memory == devices_[i].memory)
        result[i].budget_bytes -= result[j].total_bytes() + result[j].host_bytes;
    if (const auto most = devices_[i].most)
      result[i].budget_bytes = std::min(result[i].budget_bytes, *most);
  }
  return result;
}

// Of memory that they share, the others may need more than there is.
std::string ShardPlanner::budget_text(int device, std::int64_t budget) const {
  if (budget >= 0) return fmt::format("a budget of {}", format_bytes(budget));
  const std::int64_t free = free_memory(device);
  return fmt::format("{} of free memory, of which the others need {}", format_bytes(free),
                     format_bytes(free - budget));
}

Error ShardPlanner::does_not_fit(const std::vector<ShardPlan>& shards) const {
  const auto at = std::min_element(
      shards.begin(), shards.end(),
      [](const ShardPlan& a, const ShardPlan& b) { return a.free_bytes() < b.free_bytes(); });
  const ShardPlan& worst = *at;
  std::string text = fmt::format(
      "{} lacks {}: {} with weights {}{}, KV of {} sequences of {} tokens {}, recurrent state {}, "
      "scratch {} and {} besides, against {}; {} the largest part",
      worst.device, format_bytes(-worst.free_bytes()), range_text(worst.layout),
      format_bytes(worst.weight_bytes), worst.file_bytes > 0 ? " beside those in the file" : "",
      worst.layout.slots, sizes_.context, format_bytes(worst.kv_bytes),
      format_bytes(worst.recurrent_bytes), format_bytes(worst.scratch_bytes + worst.offload_bytes),
      format_bytes(worst.handoff_bytes + worst.connection_bytes + worst.host_bytes),
      budget_text(static_cast<int>(at - shards.begin()), worst.budget_bytes), largest_part(worst));
  return Error::make(ErrorCode::exhausted, "{}", text);
}

std::string ShardPlanner::enough() const {
  const Result<Ends> ends = choose_ends();
  if (!ends) return {};
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  std::vector<std::int64_t> least;
  for (std::size_t i = 0; i < ends->size(); ++i)
    least.push_back(least_bytes(static_cast<int>(i), i == 0 ? 0 : (*ends)[i - 1], (*ends)[i]));
  std::vector<std::string> texts;
  std::vector<int> memories;  // that were looked at
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (devices_[i].budget) {
      if (least[i] > *devices_[i].budget)
        texts.push_back(
            fmt::format("a budget of {} MiB for {}", ceil_div(least[i], kMiB), devices_[i].name));
      continue;
    }
    if (std::find(memories.begin(), memories.end(), devices_[i].memory) != memories.end()) continue;
    memories.push_back(devices_[i].memory);
    std::int64_t all = 0;
    for (std::size_t j = 0; j < least.size(); ++j)
      if (devices_[j].memory == devices_[i].memory) all += least[j];
    if (all > free_memory(static_cast<int>(i)))
      texts.push_back(
          fmt::format("{} MiB of free memory for {}", ceil_div(all, kMiB), devices_[i].name));
  }
  return fmt::format("{}", fmt::join(texts, " and "));
}

std::string ShardPlanner::held() const {
  const int held = devices_.size() > 1 ? layers_that_fit() : spec_.n_layer();
  if (held == spec_.n_layer()) return {};
  return fmt::format("together the devices hold {} of {} layers", held, spec_.n_layer());
}

// Filling the devices in turn, with as little of each layer as they must hold.
int ShardPlanner::layers_that_fit() const {
  int begin = 0;
  std::vector<ShardPlan> filled;
  for (std::size_t i = 0; i < devices_.size() && begin < spec_.n_layer(); ++i) {
    std::int64_t shared = 0;
    for (std::size_t j = 0; j < filled.size(); ++j)
      if (!devices_[i].budget && devices_[j].memory == devices_[i].memory)
        shared += filled[j].total_bytes() + filled[j].host_bytes;
    begin = longest_range(static_cast<int>(i), begin, shared, filled.emplace_back());
  }
  return begin;
}

// Where the longest range ends that the device holds beside `shared` bytes; `range` is that, or as
// it was where there is none. A shorter range needs no more than a longer one.
int ShardPlanner::longest_range(int device, int begin, std::int64_t shared,
                                ShardPlan& range) const {
  std::vector<int> ends;
  for (int end = begin + 1; end <= spec_.n_layer(); ++end)
    if (legal_[static_cast<std::size_t>(end)]) ends.push_back(end);
  const auto too_long = std::partition_point(ends.begin(), ends.end(), [&](int end) {
    ShardPlan candidate = shard(device, begin, end, Residents::least);
    if (candidate.free_bytes() - shared < 0) return false;
    range = std::move(candidate);  // the last to hold is the longest
    return true;
  });
  return too_long == ends.begin() ? begin : *(too_long - 1);
}

}  // namespace tessera
