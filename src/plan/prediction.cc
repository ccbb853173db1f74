#include "plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_device.h"
#include "device/cpu/matmul.h"
#include "device/shard_tensors.h"

namespace tessera {
namespace {

constexpr const char* kReading = "reading weights";
constexpr const char* kExperts = "reading experts that are away";
constexpr const char* kArithmetic = "arithmetic";

// What lies in the model's file and is not quantised is packed for each use, which reads it and
// takes its time: a product of it runs at two thirds of the speed of one that was packed before, at
// most. Quantised rows are multiplied where they lie (docs/kernels.md, "Packing").
constexpr double kFileReads = 1.5;

// Experts that cross to a GPU are no faster there than the fastest link of today, 16 lanes of
// PCIe 5; this one's speed is measured when they are loaded.
constexpr double kLinkBytesPerSecond = 64e9;

double file_reads(const TensorSlice& slice, const ShardPlan& shard) {
  return cpu::reads_file(slice.type) && !shard.layout.f32_weights ? 1.0 : kFileReads;
}

// What one step takes of a shard: a token, or `rows` rows of one prompt.
struct Demand {
  double resident_bytes = 0.0;  // and what is no expert
  double away_bytes = 0.0;      // with the host, in the file
  double away_reads = 0.0;      // the same as the host reads them
  double operations = 0.0;      // without those of workers
  // Times each worker's share of the pairs.
  double worker_bytes = 0.0;
  double worker_operations = 0.0;
};

double workers_share(const ShardPlan& shard) {
  double share = 0.0;
  for (const ExpertWorkerUse& use : shard.worker_uses) share += use.share;
  return share;
}

Demand demand_of(const Model& model, const ShardPlan& shard, int rows) {
  const ModelSpec& spec = model.spec();
  Demand demand;
  for (const TensorSlice& slice : model.tensors()) {
    if (!in_shard(slice, spec, shard.layout)) continue;
    // Of the embedding a row is read, and the head is needed for one row of a prompt.
    const bool head = slice.layer < 0;
    if (slice.role == TensorRole::token_embd && !(spec.tied_head && shard.layout.head)) continue;
    const double elements = static_cast<double>(slice.rows) * static_cast<double>(slice.cols);
    const BlockType type = shard.layout.f32_weights ? BlockType::F32 : slice.type;
    const double bytes =
        static_cast<double>(slice.rows) * static_cast<double>(row_bytes(type, slice.cols));
    if (slice.matrices == 1) {
      demand.resident_bytes +=
          stays_in_file(slice, spec, shard.layout) ? file_reads(slice, shard) * bytes : bytes;
      demand.operations += 2.0 * elements * (head ? 1 : rows);
      continue;
    }
    const int used = spec.layers[static_cast<std::size_t>(slice.layer)].moe->n_used;
    const double count = static_cast<double>(slice.matrices);
    const double touched = count * (1.0 - std::pow(1.0 - used / count, rows));
    const double at_workers = workers_share(shard);
    demand.resident_bytes += bytes * touched * (1.0 - shard.cold_share);
    const double away = bytes * touched * (shard.cold_share - at_workers);
    demand.away_bytes += away;
    demand.away_reads += file_reads(slice, shard) * away;
    demand.worker_bytes += bytes * touched;
    const double operations = 2.0 * elements * used * rows;
    demand.operations += operations * (1.0 - at_workers);
    demand.worker_operations += operations;
  }
  // Read and written once: a prompt's rows are of one sequence.
  demand.resident_bytes += 2.0 * static_cast<double>(cpu_slot_bytes(spec, shard.layout));
  return demand;
}

bool on_host(const ShardPlan& shard) {
  return !shard.remote && shard.kind == DeviceKind::cpu;
}

// Whether the processors of this process read weights: of a shard, or of experts away from a GPU.
bool takes_host(const ShardPlan& shard) {
  return on_host(shard) || (!shard.remote && shard.experts_host > 0);
}

// What is not known bounds nothing.
double known_op_per_s(double op_per_s) {
  return op_per_s > 0.0 ? op_per_s : std::numeric_limits<double>::infinity();
}

// How fast a shard's weights are read, and those that are away from it, and computed with.
struct Readers {
  double bytes_per_s = 0.0;
  double away_bytes_per_s = 0.0;  // by the host
  double op_per_s = 0.0;
  bool at_once = false;           // what is away is read meanwhile
  double link_bytes_per_s = 0.0;  // what is away crosses; 0: does not
  bool both = false;              // beside the host's reading, else in its place
};

enum class Work { prompt, token };

// All shards work at once on a prompt, and one after another on a token.
Readers host_readers(const Plan& plan, const ShardPlan& shard, const MeasuredSpeed& host,
                     Work work) {
  const double share = shard.threads / std::max(1.0, static_cast<double>(host_threads(plan)));
  const double bytes_per_s =
      work == Work::prompt
          ? host.read_bytes_per_s * share
          : std::min(host.read_bytes_per_s, host.thread_read_bytes_per_s * shard.threads);
  return {.bytes_per_s = bytes_per_s,
          .away_bytes_per_s = bytes_per_s,
          .op_per_s = host.op_per_s * share};
}

Readers readers_of(const Plan& plan, const ShardPlan& shard, const MeasuredSpeed& host, Work work) {
  if (on_host(shard)) return host_readers(plan, shard, host, work);
  return {.bytes_per_s = shard.bytes_per_s,
          .away_bytes_per_s = shard.remote ? shard.bytes_per_s : host.read_bytes_per_s,
          .op_per_s = known_op_per_s(shard.op_per_s),
          .at_once = !shard.remote,
          .link_bytes_per_s = shard.streamed_bytes > 0 ? kLinkBytesPerSecond : 0.0,
          .both = work == Work::token};
}

// Seconds that the weights of a step take, and how much of it are those that are away.
struct Reading {
  double seconds = 0.0;
  double away_s = 0.0;
};

double away_time(const Demand& demand, const Readers& readers) {
  if (demand.away_bytes <= 0.0) return 0.0;
  const double host_s = demand.away_reads / readers.away_bytes_per_s;
  if (readers.link_bytes_per_s <= 0.0) return host_s;
  const double link_s = demand.away_bytes / readers.link_bytes_per_s;
  return readers.both ? 1.0 / (1.0 / host_s + 1.0 / link_s) : std::min(host_s, link_s);
}

Reading reading_of(const Demand& demand, const Readers& readers) {
  const double resident_s = demand.resident_bytes / readers.bytes_per_s;
  const double away_s = away_time(demand, readers);
  return {readers.at_once ? std::max(resident_s, away_s) : resident_s + away_s, away_s};
}

// A shard's part of the work.
struct ShardTime {
  StepTime time;
  std::string prompt_bound = kReading;
  std::string token_bound = kReading;
};

// What a worker takes of a token: its calls, where their round trip is known, and reading.
double token_time(const ExpertWorkerPlan& worker, double calls, double bytes) {
  return calls * worker.call_s + bytes / worker.bytes_per_s;
}

// And of a piece of a prompt. Every layer of it has pairs for the worker; how many jobs that makes
// depends on the cut, so no calls are counted.
double chunk_time(const ExpertWorkerPlan& worker, double bytes, double operations) {
  return std::max(bytes / worker.bytes_per_s, operations / known_op_per_s(worker.op_per_s));
}

// The worker that takes longest with a step of a shard.
struct Slowest {
  double seconds = 0.0;
  std::string name;
};

Slowest slowest_worker(const Plan& plan, const ShardPlan& shard, const Demand& demand, bool token) {
  Slowest slowest;
  for (std::size_t w = 0; w < shard.worker_uses.size(); ++w) {
    const ExpertWorkerUse& use = shard.worker_uses[w];
    if (use.share <= 0.0) continue;
    const ExpertWorkerPlan& worker = plan.expert_workers[w];
    const double bytes = demand.worker_bytes * use.share;
    const double seconds = token ? token_time(worker, use.calls, bytes)
                                 : chunk_time(worker, bytes, demand.worker_operations * use.share);
    if (seconds > slowest.seconds) slowest = {seconds, worker.device};
  }
  return slowest;
}

// Workers of experts compute at the same time as the shard, so the slower of both counts.
ShardTime by_machine(const Model& model, const Plan& plan, const ShardPlan& shard,
                     const MeasuredSpeed& speed) {
  const int rows = std::min(plan.prefill_chunk, plan.piece_rows);
  const Readers readers = readers_of(plan, shard, speed, Work::prompt);
  const Demand token = demand_of(model, shard, 1);
  const Demand chunk = demand_of(model, shard, rows);
  const Reading of_token = reading_of(token, readers_of(plan, shard, speed, Work::token));
  const Reading of_chunk = reading_of(chunk, readers);
  const double compute_s = chunk.operations / readers.op_per_s;
  const auto bound = [](const Reading& reading) {
    return 2.0 * reading.away_s > reading.seconds ? kExperts : kReading;
  };
  ShardTime part{.time = {.prompt_row_s = std::max(of_chunk.seconds, compute_s) / rows,
                          .token_s = of_token.seconds},
                 .prompt_bound = compute_s > of_chunk.seconds ? kArithmetic : bound(of_chunk),
                 .token_bound = bound(of_token)};
  if (const Slowest with = slowest_worker(plan, shard, token, true);
      with.seconds > part.time.token_s) {
    part.time.token_s = with.seconds;
    part.token_bound = "experts at " + with.name;
  }
  if (const Slowest with = slowest_worker(plan, shard, chunk, false);
      with.seconds / rows > part.time.prompt_row_s) {
    part.time.prompt_row_s = with.seconds / rows;
    part.prompt_bound = "experts at " + with.name;
  }
  return part;
}

std::vector<ExpertWorkerPrediction> worker_parts(const Model& model, const Plan& plan) {
  std::vector<ExpertWorkerPrediction> parts(plan.expert_workers.size());
  for (const ShardPlan& shard : plan.shards) {
    const double bytes = demand_of(model, shard, 1).worker_bytes;
    for (std::size_t w = 0; w < shard.worker_uses.size(); ++w) {
      parts[w].calls += shard.worker_uses[w].calls;
      parts[w].bytes += bytes * shard.worker_uses[w].share;
    }
  }
  for (std::size_t w = 0; w < parts.size(); ++w)
    if (parts[w].bytes > 0.0)
      parts[w].token_s = token_time(plan.expert_workers[w], parts[w].calls, parts[w].bytes);
  return parts;
}

// The times add up to a prediction; what bounds it is named by the callers.
struct Totals {
  StepTime sum;
  std::size_t slowest = 0;  // device with a prompt
  std::size_t longest = 0;  // with a token
};

Totals total(const std::vector<ShardTime>& devices) {
  Totals totals;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    totals.sum += devices[i].time;
    if (devices[i].time.prompt_row_s > devices[totals.slowest].time.prompt_row_s)
      totals.slowest = i;
    if (devices[i].time.token_s > devices[totals.longest].time.token_s) totals.longest = i;
  }
  return totals;
}

// What a device takes with all of its ranges.
std::vector<ShardTime> device_times(const std::vector<ShardTime>& shards, std::size_t devices) {
  std::vector<ShardTime> times(shards.begin(),
                               shards.begin() + static_cast<std::ptrdiff_t>(devices));
  for (std::size_t i = devices; i < shards.size(); ++i) times[i % devices].time += shards[i].time;
  return times;
}

std::vector<ShardTime> shard_times(const Model& model, const Plan& plan,
                                   const std::optional<MeasuredSpeed>& speed, bool& measured) {
  const auto known = [](const ShardPlan& shard) {
    return shard.time && shard.layout.experts.empty() && shard.layout.file_parts == 0;
  };
  measured = std::all_of(plan.shards.begin(), plan.shards.end(), known);
  std::vector<ShardTime> times;
  const bool hosted = std::any_of(plan.shards.begin(), plan.shards.end(), takes_host);
  if (!measured && ((hosted && !speed) || !unknown_speed(plan).empty())) return times;
  for (const ShardPlan& shard : plan.shards)
    times.push_back(measured ? ShardTime{.time = *shard.time}
                             : by_machine(model, plan, shard, speed.value_or(MeasuredSpeed())));
  return times;
}

// What bounds the tokens where that is one thing for more than half of each one's time, else the
// reading of weights.
std::string token_bound(const std::vector<ShardTime>& shards, double token_s) {
  for (const ShardTime& one : shards) {
    double seconds = 0.0;
    for (const ShardTime& shard : shards)
      if (shard.token_bound == one.token_bound) seconds += shard.time.token_s;
    if (2.0 * seconds > token_s) return one.token_bound;
  }
  return kReading;
}

}  // namespace

int host_threads(const Plan& plan) {
  int threads = 0;
  for (const ShardPlan& shard : plan.shards) threads += on_host(shard) ? shard.threads : 0;
  return threads;
}

std::string unknown_speed(const Plan& plan) {
  constexpr const char* kSilent = "{} has not said how fast it reads{}";
  for (const ShardPlan& shard : plan.shards) {
    if (on_host(shard)) continue;
    if (shard.bytes_per_s <= 0.0) return fmt::format(kSilent, shard.device, "");
    // It tells the speed of its GPU alone.
    if (shard.remote && shard.kind != DeviceKind::cpu && shard.experts_host > 0)
      return fmt::format(kSilent, shard.device, " what is away from its GPU");
  }
  for (const ExpertWorkerPlan& worker : plan.expert_workers)
    if (worker.experts > 0 && worker.bytes_per_s <= 0.0)
      return fmt::format(kSilent, worker.device, "");
  return {};
}

std::optional<Prediction> predict(const Model& model, const Plan& plan,
                                  const std::optional<MeasuredSpeed>& speed) {
  bool measured = false;
  const std::vector<ShardTime> shards = shard_times(model, plan, speed, measured);
  if (shards.empty()) return std::nullopt;
  const std::vector<ShardTime> devices = device_times(shards, plan.devices());
  const Totals totals = total(devices);
  const ShardTime& slowest = devices[totals.slowest];
  Prediction prediction{
      .measured = measured,
      .prefill = {.tokens_per_s = 1.0 / slowest.time.prompt_row_s, .bound = slowest.prompt_bound},
      .decode = {.tokens_per_s = 1.0 / totals.sum.token_s,
                 .bound = token_bound(shards, totals.sum.token_s)},
      .fill_row_s = (totals.sum.prompt_row_s - slowest.time.prompt_row_s) / plan.turns};
  if (!measured) prediction.expert_workers = worker_parts(model, plan);
  for (const ShardTime& shard : shards)
    prediction.shards.push_back(
        {.prefill = {.tokens_per_s = 1.0 / shard.time.prompt_row_s,
                     .bound = measured ? std::string() : shard.prompt_bound},
         .token_s = shard.time.token_s,
         .token_bound = measured ? std::string() : shard.token_bound});
  if (!measured) return prediction;
  prediction.prefill.bound = plan.shards[totals.slowest].device;
  prediction.decode.bound =
      fmt::format("{} for {:.0f}% of each token's time", plan.shards[totals.longest].device,
                  100.0 * devices[totals.longest].time.token_s / totals.sum.token_s);
  return prediction;
}

SpeedBound predicted_prompt(const Plan& plan, int tokens) {
  const Prediction& prediction = *plan.predicted;
  const double fill_s = std::min(tokens, plan.piece_rows) * prediction.fill_row_s;
  return {.tokens_per_s = tokens / (tokens / prediction.prefill.tokens_per_s + fill_s),
          .bound = prediction.prefill.bound};
}

std::string prediction_text(const Prediction& prediction, const SpeedBound& bound) {
  return fmt::format("{} {:.1f} tokens/s, bound by {}", prediction.measured ? "about" : "at most",
                     bound.tokens_per_s, bound.bound);
}

}  // namespace tessera
