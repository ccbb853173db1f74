// The part of ShardPlanner that says what is lacking where the model does not fit.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "plan/layer_cuts.h"
#include "plan/shard_planner.h"

namespace tessera {
namespace {

constexpr std::int64_t kRoomy = std::int64_t{1} << 50;  // more than any model's experts

std::string range_text(const ShardLayout& layout) {
  return fmt::format("layers {}-{}", layout.first_layer, layout.end_layer - 1);
}

std::string locked_text(const ShardPlan& shard) {
  if (shard.kind != DeviceKind::cpu || shard.locked_bytes == 0) return {};
  return fmt::format(", experts locked in memory {}", format_bytes(shard.locked_bytes));
}

const char* largest_part(const ShardPlan& shard) {
  const bool cpu = shard.kind == DeviceKind::cpu;  // a GPU has none of its process's memory
  const std::pair<std::int64_t, const char*> parts[] = {
      {shard.weight_bytes, "the weights are"},
      {cpu ? shard.locked_bytes : 0, "what --expert-prefault locks is"},
      {shard.kv_bytes, "the KV is"},
      {shard.recurrent_bytes, "the recurrent state is"},
      {saturated_add(shard.scratch_bytes, cpu ? shard.buffer_bytes() : 0), "scratch is"},
      {shard.drafter_bytes, "the drafter is"},
      {cpu ? shard.host_bytes : 0, "the program is"}};
  return std::max_element(std::begin(parts), std::end(parts))->second;
}

// What a worker at an address said that it may use: its own --budget decides. Nothing where that
// cannot be more, or for other devices.
std::optional<std::int64_t> said_budget(const DeviceInventory& on, std::int64_t needed) {
  constexpr std::size_t kPrefix = sizeof("worker:") - 1;
  if (!on.remote || on.name.find(':', kPrefix) == std::string::npos) return std::nullopt;
  if (on.most) return on.most;
  if (on.kind != DeviceKind::cpu || needed > on.memory_total) return std::nullopt;
  return on.memory_free;
}

}  // namespace

// Of memory that they share, the others may need more than there is.
std::string ShardPlanner::budget_text(int device, std::int64_t budget) const {
  if (budget >= 0) return fmt::format("a budget of {}", format_bytes(budget));
  const std::int64_t free = free_memory(device);
  return fmt::format("{} of free memory, of which the others need {}", format_bytes(free),
                     format_bytes(saturated_rest(free, {budget})));
}

Error ShardPlanner::does_not_fit(const std::vector<ShardPlan>& shards) const {
  const auto at = std::min_element(
      shards.begin(), shards.end(),
      [](const ShardPlan& a, const ShardPlan& b) { return a.free_bytes() < b.free_bytes(); });
  const ShardPlan& worst = *at;
  const bool cpu = worst.kind == DeviceKind::cpu;
  const std::int64_t besides = saturated_add(
      worst.drafter_bytes,
      cpu ? saturated_sum({worst.handoff_bytes, worst.connection_bytes, worst.host_bytes}) : 0);
  std::string text = fmt::format(
      "{} lacks {}: {} with weights {}{}{}, KV of {} sequence{} of {} tokens {}, recurrent state "
      "{}, "
      "scratch {} and {} besides, against {}; {} the largest part",
      worst.device, format_bytes(saturated_rest(0, {worst.free_bytes()})), range_text(worst.layout),
      format_bytes(worst.weight_bytes), worst.file_bytes > 0 ? " beside those in the file" : "",
      locked_text(worst), worst.layout.slots, worst.layout.slots == 1 ? "" : "s", sizes_.context,
      format_bytes(worst.kv_bytes), format_bytes(worst.recurrent_bytes),
      format_bytes(saturated_add(worst.scratch_bytes, cpu ? worst.offload_bytes : 0)),
      format_bytes(besides), budget_text(static_cast<int>(at - shards.begin()), worst.budget_bytes),
      largest_part(worst));
  return Error::make(ErrorCode::exhausted, "{}", text);
}

Error ShardPlanner::workers_lack(const Homeless& homeless) const {
  std::vector<std::string> texts;
  for (const ExpertWorkerInventory& worker : workers_)
    texts.push_back(
        fmt::format("{} with a budget of {}", worker.name, format_bytes(worker.budget)));
  return Error::make(ErrorCode::exhausted,
                     "--expert-ipc-required: {} experts ({}) fit neither their layers' devices nor "
                     "the workers ({})",
                     homeless.experts, format_bytes(homeless.bytes), fmt::join(texts, ", "));
}

// A budget of the first worker that takes what has no place: the others may be left with less than
// an expert each. The devices have what they need `least`, where that is more than their budgets.
std::string ShardPlanner::enough_workers(const Ends& ends,
                                         std::span<const std::int64_t> least) const {
  if (workers_.empty()) return {};
  std::vector<ShardPlan> enough;
  std::vector<std::int64_t> room = worker_room_;
  const std::vector<std::int64_t> most = budgets(ends);
  for (const LayerRange layers : ranges_of(ends)) {
    const std::size_t i = enough.size();
    enough.push_back(
        shard(static_cast<int>(i), layers, Residents::best, std::max(most[i], least[i]), room));
  }
  const Homeless left = homeless(enough);
  if (left.experts == 0) return {};
  const std::int64_t rest =
      saturated_mul(*std::max_element(expert_bytes_.begin(), expert_bytes_.end()),
                    static_cast<std::int64_t>(workers_.size() - 1));
  const std::int64_t bytes =
      saturated_sum({workers_.front().budget, left.bytes, rest,
                     std::max<std::int64_t>(0, saturated_rest(0, {worker_room_.front()}))});
  return fmt::format("a budget of {} MiB for {}", ceil_div(bytes, std::int64_t{1} << 20),
                     workers_.front().name);
}

// What each device must hold. The way to workers that are required takes memory of it, also where
// these have no room yet.
std::vector<std::int64_t> ShardPlanner::least_with_workers(const Ends& ends) const {
  Inventory roomy{.devices = devices_, .expert_workers = workers_};
  if (options_.expert_workers_required)
    for (ExpertWorkerInventory& worker : roomy.expert_workers) worker.budget = kRoomy;
  const ShardPlanner planner(model_, roomy, options_, sizes_);
  std::vector<std::int64_t> least;
  for (const LayerRange layers : ranges_of(ends))
    least.push_back(planner.least_bytes(static_cast<int>(least.size()), layers));
  return least;
}

std::string ShardPlanner::enough() const {
  const Result<Ends> ends = choose_ends();
  if (!ends) return {};
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const std::vector<std::int64_t> least = least_with_workers(*ends);
  std::vector<std::string> texts;
  std::vector<int> memories;  // that were looked at
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (const auto said = said_budget(devices_[i], least[i]); said && least[i] > *said) {
      texts.push_back(fmt::format("{} started with --budget {}MiB", devices_[i].name,
                                  ceil_div(least[i], kMiB)));
      continue;
    }
    if (devices_[i].budget) {
      if (least[i] > *devices_[i].budget)
        texts.push_back(
            fmt::format("a budget of {} MiB for {}", ceil_div(least[i], kMiB), devices_[i].name));
      continue;
    }
    if (std::find(memories.begin(), memories.end(), devices_[i].memory) != memories.end()) continue;
    memories.push_back(devices_[i].memory);
    std::int64_t all = devices_[i].memory == kHostMemory ? most_besides() : 0;
    for (std::size_t j = 0; j < least.size(); ++j)
      if (devices_[j].memory == devices_[i].memory) all = saturated_add(all, least[j]);
    if (all > free_memory(static_cast<int>(i)))
      texts.push_back(
          fmt::format("{} MiB of free memory for {}", ceil_div(all, kMiB), devices_[i].name));
  }
  if (std::string program = enough_for_program(*ends); !program.empty() && texts.empty())
    texts.push_back(std::move(program));
  if (std::string workers = enough_workers(*ends, least); !workers.empty())
    texts.push_back(std::move(workers));
  return fmt::format("{}", fmt::join(texts, " and "));
}

std::string ShardPlanner::held() const {
  const int held = devices_.size() > 1 ? layers_that_fit() : spec_.n_layer();
  if (held == spec_.n_layer()) return {};
  return fmt::format("together the devices hold {} of {} layers", held, spec_.n_layer());
}

// Filling the devices in turn, with as little of each layer as they must hold.
int ShardPlanner::layers_that_fit() const {
  LayerRange left{0, spec_.n_layer()};
  std::vector<ShardPlan> filled;
  for (std::size_t i = 0; i < devices_.size() && left.size() > 0; ++i) {
    std::int64_t shared = 0;
    for (std::size_t j = 0; j < filled.size(); ++j)
      if (!devices_[i].budget && devices_[j].memory == devices_[i].memory)
        shared = saturated_add(shared, filled[j].charged_bytes());
    ShardPlan& shard = filled.emplace_back();
    if (auto longest = longest_shard(static_cast<int>(i), left, shared)) {
      shard = *std::move(longest);
      left.begin = shard.layout.end_layer;
    }
  }
  return left.begin;
}

// The most layers from the first of `left` on that the device holds beside `shared` bytes, if it
// holds one. A shorter range needs no more than a longer one.
std::optional<ShardPlan> ShardPlanner::longest_shard(int device, LayerRange left,
                                                     std::int64_t shared) const {
  std::vector<int> ends;
  for (int end = left.begin + 1; end <= left.end; ++end)
    if (legal_[static_cast<std::size_t>(end)]) ends.push_back(end);
  std::optional<ShardPlan> longest;
  (void)std::partition_point(ends.begin(), ends.end(), [&](int end) {
    ShardPlan candidate = shard(device, {left.begin, end}, Residents::least);
    if (saturated_rest(candidate.free_bytes(), {shared}) < 0) return false;
    longest = std::move(candidate);  // the last to hold is the longest
    return true;
  });
  return longest;
}

}  // namespace tessera
