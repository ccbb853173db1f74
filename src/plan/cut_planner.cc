// The part of ShardPlanner that chooses where the layers are cut.
#include <algorithm>

#include "base/checked.h"
#include "device/cpu/matmul.h"
#include "plan/layer_cuts.h"
#include "plan/shard_planner.h"

namespace tessera {
namespace {

// What leaves a CPU device's memory and is packed for each product counts once more: that takes
// about twice the time. Quantised rows are read where they lie (docs/kernels.md, "Packing").
constexpr double kLeftReads = 1.0;
// A token alone takes as long as about so many rows of a prompt (README.md, "Speed"). Where nothing
// has left, cuts by bytes need not know it: how long a token takes is then much the same with all.
constexpr double kRowsPerToken = 8.0;

}  // namespace

ShardPlanner::LayerReads ShardPlanner::layer_reads() const {
  LayerReads reads;
  reads.others.resize(spec_.layers.size(), 0.0);
  reads.experts = reads.others;
  double sum = 0.0;
  for (const TensorSlice& slice : model_.tensors()) {
    const BlockType type = options_.f32_weights ? BlockType::F32 : slice.type;
    const double bytes =
        static_cast<double>(slice.rows) * static_cast<double>(row_bytes(type, slice.cols));
    const auto layer = static_cast<std::size_t>(slice.layer);
    if (slice.layer < 0)
      reads.head += slice.role == TensorRole::token_embd && !spec_.tied_head ? 0.0 : bytes;
    else if (slice.matrices > 1)
      reads.experts[layer] += bytes * spec_.layers[layer].moe->n_used;
    else
      reads.others[layer] += bytes;
    const double all = bytes * static_cast<double>(slice.matrices);
    sum += all;
    if (options_.f32_weights || !cpu::reads_file(slice.type)) reads.packed += all;
  }
  reads.packed /= std::max(1.0, sum);
  reads.before.assign(1, 0.0);
  for (std::size_t l = 0; l < spec_.layers.size(); ++l)
    reads.before.push_back(reads.before.back() + reads.others[l] + reads.experts[l]);
  return reads;
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
    const std::vector<Holding> held = holdings();
    const std::optional<Ends> ends = balanced_ends({&limits, &held}, {});
    if (ends && (!shared || fit(*ends))) return *ends;
    if (most_ranges() > 1) {
      // Ranges of one GPU that each get as much of it as the others.
      const RangeLimits parts = range_limits(/*divided=*/true);
      if (const auto even = balanced_ends({&parts, &held}, {}); even && fit(*even)) return *even;
    }
    if (shared)
      if (const std::optional<Ends> frugal = frugal_ends({&limits, &held})) return *frugal;
    return ends ? *ends : *balanced_ends({}, {});  // plan() says what lacks
  }
  if (options_.layer_weights.size() != devices_.size())
    return Error::make(ErrorCode::invalid, "--target-layer-split: {} weights for {} devices",
                       options_.layer_weights.size(), n);
  Result<Ends> wanted = ends_by_weights(spec_.n_layer(), options_.layer_weights);
  if (!wanted) return std::move(wanted).error().in("--target-layer-split");
  return *best_ends(legal_, n, nearest_to(*std::move(wanted)));
}

// With what leaves the device's memory, where that is known.
StepTime ShardPlanner::range_time(int device, LayerRange layers, const LayerReads& reads,
                                  const Holding* holding) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const double row = reads.before[static_cast<std::size_t>(layers.end)] -
                     reads.before[static_cast<std::size_t>(layers.begin)];
  const double threads = on.speed > 0.0 ? on.speed : on.threads;
  const double share = row / reads.before.back() / threads;
  StepTime time = measured_ ? span_time(*on.times, layers) : StepTime{share, share};
  if (holding == nullptr) return time;
  const LeftReads left = left_reads(device, layers, *holding, reads);
  // What is away from a GPU the host reads.
  const double slower = on.kind == DeviceKind::cpu
                            ? kLeftReads * reads.packed
                            : threads * kThreadBytesPerSecond / options_.expert_costs.bytes_per_s;
  const double token = layers.end == spec_.n_layer() ? row + reads.head : row;
  const double row_s = time.prompt_row_s;
  time.prompt_row_s += slower * row_s * left.row / row;
  time.token_s += measured_ ? slower * time.token_s * left.token / token
                            : kRowsPerToken * slower * row_s * left.token / row;
  return time;
}

std::optional<ShardPlanner::Ends> ShardPlanner::balanced_ends(const CutLimits& limits,
                                                              const MemoryPrice& price) const {
  const LayerReads reads = layer_reads();
  const auto time = [&](int device, LayerRange layers) -> std::optional<StepTime> {
    const auto i = static_cast<std::size_t>(device);
    const auto from = static_cast<std::size_t>(layers.begin);
    if (limits.ranges != nullptr && layers.end > (*limits.ranges)[i][from]) return std::nullopt;
    const bool leaves = limits.held != nullptr && !limits.held->empty();
    StepTime time = range_time(device, layers, reads, leaves ? &(*limits.held)[i] : nullptr);
    if (i < price.before.size() && !price.before[i].empty())
      time.token_s += price.byte_s * (price.before[i][static_cast<std::size_t>(layers.end)] -
                                      price.before[i][from]);
    return time;
  };
  return fastest_ends(legal_, static_cast<int>(devices_.size()), time, options_.prompt_ratio);
}

// How many ranges a GPU gets, and the GPU that gets most (turns.h).
std::int64_t ShardPlanner::ranges_of_gpu(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  if (on.kind == DeviceKind::cpu || on.remote) return 1;
  return std::count_if(devices_.begin(), devices_.end(),
                       [&](const DeviceInventory& other) { return other.name == on.name; });
}

std::int64_t ShardPlanner::most_ranges() const {
  std::int64_t most = 1;
  for (int i = 0; i < static_cast<int>(devices_.size()); ++i)
    most = std::max(most, ranges_of_gpu(i));
  return most;
}

// A shorter range needs no more than a longer one, so each end is looked for from the one before.
ShardPlanner::RangeLimits ShardPlanner::range_limits(bool divided) const {
  const int n = static_cast<int>(devices_.size()), n_layer = spec_.n_layer();
  RangeLimits limits(devices_.size(), std::vector<int>(legal_.size(), 0));
  for (int device = 0; device < n; ++device) {
    const std::int64_t most = budget(device) / (divided ? ranges_of_gpu(device) : 1);
    const auto holds = [&](LayerRange layers) {
      std::vector<std::int64_t> room = worker_room_;
      return shard(device, layers, Residents::least, most, room).free_bytes() >= 0;
    };
    const int last = device == 0 ? 0 : n_layer - (n - device);  // where its range begins at most
    int begin = device, end = device;
    // The last device needs to hold all that is left, the others as much as they can.
    if (device + 1 == n) {
      for (int high = n_layer; begin < high;) {
        const int middle = (begin + high) / 2;
        holds({middle, n_layer}) ? high = middle : begin = middle + 1;
      }
      end = n_layer;
    } else {
      for (int high = n_layer; end < high;) {
        const int middle = (end + high + 1) / 2;
        holds({begin, middle}) ? end = middle : high = middle - 1;
      }
    }
    for (; begin <= last; ++begin) {
      end = std::max(end, begin);
      while (end < n_layer && begin > device && holds({begin, end + 1})) ++end;
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
    const ShardPlan layer = shard(device, {l, l + 1}, Residents::least, /*budget=*/0, room);
    before.push_back(before.back() +
                     static_cast<double>(saturated_sum(
                         {layer.weight_bytes, layer.kv_bytes, layer.recurrent_bytes})));
  }
  return before;
}

// Where ranges that fit one by one are together too much for memory that their devices share: the
// first cut that is not, of those for which that memory counts as dearer and dearer.
std::optional<ShardPlanner::Ends> ShardPlanner::frugal_ends(const CutLimits& limits) const {
  constexpr double kFirst = 1e-16, kLast = 1e3, kFactor = 10.0;
  MemoryPrice price{.byte_s = kLast, .before = {}};
  for (int i = 0; i < static_cast<int>(devices_.size()); ++i)
    price.before.push_back(shares_memory(i) ? least_before(i) : std::vector<double>());
  const std::optional<Ends> least = balanced_ends(limits, price);
  if (!least || !fit(*least)) return std::nullopt;
  for (price.byte_s = kFirst; price.byte_s < kLast; price.byte_s *= kFactor)
    if (const std::optional<Ends> ends = balanced_ends(limits, price); ends && fit(*ends))
      return ends;
  return least;
}

bool ShardPlanner::fit(const Ends& ends) const {
  const std::vector<ShardPlan> all = shards(ends);
  const std::optional<ProgramPlan> own = program(all);
  return (!own || own->fits()) && homeless(all).experts == 0 &&
         std::all_of(all.begin(), all.end(),
                     [](const ShardPlan& shard) { return shard.free_bytes() >= 0; });
}

// Whether it has no budget, and others take of its memory too.
bool ShardPlanner::shares_memory(int device) const {
  const DeviceInventory& on = devices_[static_cast<std::size_t>(device)];
  const auto with = std::count_if(devices_.begin(), devices_.end(),
                                  [&](const auto& other) { return other.memory == on.memory; });
  return !on.budget && with > 1;
}

}  // namespace tessera
