#include "experts/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "experts/dispatcher_group.h"

namespace tessera {
namespace {

constexpr std::chrono::microseconds kCreditPause{50};

// A worker that fails now and then is told of this often at most.
constexpr std::chrono::seconds kLogPause{10};

std::int64_t microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

// Of a job that a worker did not compute, though it may have taken it.
WorkerFailure failure_of(const Error& error, bool taken) {
  switch (error.code) {
    case ErrorCode::cancelled:
      return WorkerFailure::deadline;
    case ErrorCode::exhausted:
      return WorkerFailure::no_credit;
    case ErrorCode::unavailable:
      return WorkerFailure::unavailable;
    case ErrorCode::invalid:
      return taken ? WorkerFailure::not_finite : WorkerFailure::refused;
    case ErrorCode::not_found:
      return WorkerFailure::refused;
    default:
      return WorkerFailure::failed;
  }
}

}  // namespace

Dispatcher::Dispatcher(const ModelSpec& spec, const ShardLayout& layout, DispatcherParts parts)
    : n_embd_(spec.n_embd),
      most_used_(most_experts_used(spec)),
      table_(layout),
      options_(parts.options),
      metrics_(parts.metrics),
      reads_(std::move(parts.expert_bytes), table_),
      cache_(table_, {}),
      bypass_(table_.workers(), parts.options.patience) {
  CHECK(parts.host != nullptr);
  for (const LayerExperts& layer : layout.experts) {
    streamed_layers_.push_back(layer.streamed);
    foreseen_.reserve(std::max(foreseen_.capacity(), layer.home.size()));
  }
  const auto rows = static_cast<std::size_t>(layout.max_rows);
  const std::size_t pairs = rows * static_cast<std::size_t>(most_experts_used(spec));
  split_.reserve(table_, pairs);
  for (int i = 0; i <= table_.workers(); ++i) {
    Group& group = *groups_.emplace_back(std::make_unique<Group>());
    group.is_host = i == 0;
    group.worker = i - 1;
    if (static_cast<std::size_t>(i) < parts.costs.size())
      group.cost = parts.costs[static_cast<std::size_t>(i)];
    if (group.is_host)
      group.executor = std::move(parts.host);
    else if (static_cast<std::size_t>(i) <= parts.workers.size())
      group.executor = std::move(parts.workers[static_cast<std::size_t>(i) - 1]);
    group.rows.reserve(rows);
    group.inputs.resize(rows * static_cast<std::size_t>(spec.n_embd));
    group.sums.resize(group.inputs.size());
    group.pairs.reserve(pairs);
    group.jobs.reserve(rows);
  }
}

Dispatcher::~Dispatcher() {
  drop_all();
}

std::int64_t Dispatcher::bytes(const ModelSpec& spec, const ShardLayout& layout) {
  const std::int64_t row = spec.n_embd * std::int64_t{sizeof(float) + sizeof(double)} +
                           sizeof(std::int32_t) + sizeof(Job);
  const std::int64_t pair = 2 * std::int64_t{sizeof(RoutedPair)} * most_experts_used(spec);
  return (worker_count(layout) + 1) * layout.max_rows * (row + pair);
}

Result<std::optional<ExpertOfLayer>> Dispatcher::measure_host() {
  constexpr int kJobs = 2;  // the first one finds the expert's pages and the threads cold
  for (int layer = table_.first_layer(); layer < table_.end_layer(); ++layer)
    for (int expert = 0; expert < table_.layer(layer).experts(); ++expert) {
      if (!table_.layer(layer).home(expert).is_worker()) continue;
      Group& host = *groups_.front();
      const RoutedPair pair{.expert = expert, .weight = 1.0f};
      const auto row = static_cast<std::size_t>(n_embd_);
      Result<ExpertReport> report = ExpertReport{};
      for (int i = 0; i < kJobs; ++i) {
        TESSERA_TRY(host.executor->submit({.layer = layer,
                                           .n_rows = 1,
                                           .rows = std::span(host.inputs).first(row),
                                           .pairs = std::span(&pair, 1)}));
        report = host.executor->collect(std::span(host.sums).first(row));
        if (!report) return report.error();
      }
      host_pace_.learn(1, static_cast<double>(report->compute_us));
      return std::optional(ExpertOfLayer{.layer = layer, .expert = expert});
    }
  return std::optional<ExpertOfLayer>();
}

Status Dispatcher::compute(Device& device, int layer) {
  if (table_.layer(layer).all_resident()) {
    device.all_experts(layer);
    device.dense(layer);
    return {};
  }
  const std::span<const RoutedPair> pairs = device.routed_pairs();
  split_.assign(table_.layer(layer), pairs);
  observe(layer, pairs);
  count_foreseen(layer);
  if (split_.all_resident()) {
    device.experts(layer, pairs);
    device.dense(layer);
    return {};
  }
  pass_over(layer);
  choose_stream(device, layer, pairs.back().row + 1);
  if (split_.all_here()) {
    device.experts(layer, split_.resident());
    device.dense(layer);
    fetch_streamed(device, layer);
    return {};
  }
  const std::span<const float> rows = device.expert_rows(layer);
  const auto begin = Clock::now();
  for (const auto& group : groups_) {
    gather(*group, group->is_host ? split_.of_host() : split_.of_worker(group->worker), rows);
    const auto start = Clock::now();
    submit_some(*group, layer);
    group->submit_us = microseconds_since(start);
  }
  device.experts(layer, split_.resident());
  device.dense(layer);
  fetch_streamed(device, layer);
  std::int64_t worked_us = microseconds_since(begin);
  for (const auto& group : groups_) {
    if (group->rows.empty()) continue;
    group->hideable_us = worked_us;
    const auto start = Clock::now();
    const Status status = finish(*group, layer);
    judge(*group, static_cast<double>(group->submit_us + microseconds_since(start)));
    // Behind the host's work a worker's can hide, behind another worker's it cannot.
    if (group->is_host) worked_us = microseconds_since(begin);
    if (!status) {
      drop_all();
      return status;
    }
    const std::size_t n = group->rows.size() * static_cast<std::size_t>(n_embd_);
    device.add_expert_sums(layer, group->rows, std::span(group->sums).first(n));
  }
  return {};
}

std::vector<std::string> Dispatcher::away() const {
  std::vector<std::string> lines;
  for (const auto& group : groups_) {
    if (group->executor == nullptr) continue;
    if (const auto away = group->executor->away())
      lines.push_back(fmt::format("{} is {}", group->executor->name(), *away));
    else if (group->is_host)
      continue;
    else if (const auto sizes = bypass_.passed_over(group->worker, Clock::now()))
      lines.push_back(fmt::format("{} is passed over for {}: the host is faster",
                                  group->executor->name(), *sizes));
  }
  return lines;
}

std::vector<std::string> Dispatcher::unanswered() const {
  std::vector<std::string> lines;
  for (const auto& group : groups_) {
    if (group->executor == nullptr) continue;
    if (const auto why = group->executor->unanswered())
      lines.push_back(fmt::format("{} is {}", group->executor->name(), *why));
  }
  return lines;
}

// What a worker has no room for the host gets, and what it does sooner, among its own pairs where
// exact sums make the same bits there.
void Dispatcher::pass_over(int layer) {
  if (options_.required) return;
  for (int id = 0; id < table_.workers(); ++id) {
    Group& group = *groups_[static_cast<std::size_t>(id) + 1];
    const std::size_t pairs = split_.of_worker(id).size();
    const bool lacks = group.executor != nullptr && !group.executor->has(layer);
    group.passed_over = pairs > 0 && (lacks || bypass_.passes_over(id, pairs, Clock::now()));
    if (!group.passed_over) continue;
    if (!group.executor->rounds()) split_.give_to_host(id);
    if (metrics_ != nullptr)
      metrics_->count_fallback(lacks ? WorkerFailure::no_room : WorkerFailure::slow);
  }
}

// Jobs that a worker did not take cost nothing and say nothing of it.
void Dispatcher::judge(Group& group, double spent_us) {
  const bool complete = std::cmp_equal(group.served, group.jobs.size());
  if (group.is_host || options_.required || !(complete || group.late)) return;
  const std::size_t pairs = group.pairs.size();
  const Bypass::Spent spent{.pairs = pairs, .us = spent_us, .host_us = host_pace_.us(pairs)};
  switch (bypass_.learn(group.worker, spent, Clock::now())) {
    case BypassChange::none:
      break;
    case BypassChange::begun:
      log_warn("{} is passed over for {}: the host is faster", group.executor->name(),
               Bypass::size_text(pairs));
      break;
    case BypassChange::ended:
      log_info("{} is given {} again", group.executor->name(), Bypass::size_text(pairs));
      break;
  }
}

// As many of the group's jobs as its executor takes.
void Dispatcher::submit_some(Group& group, int layer) {
  if (group.passed_over) return;
  for (; group.next < group.jobs.size(); ++group.next) {
    Job& job = group.jobs[group.next];
    Status taken = group.executor == nullptr
                       ? Error::make(ErrorCode::unavailable, "there is no such worker")
                       : group.executor->submit(expert_job(group, job, layer));
    if (!taken && taken.error().code == ErrorCode::exhausted && group.under_way > 0) return;
    job.submitted = taken.ok();
    if (taken)
      ++group.under_way;
    else
      job.refused = std::move(taken).error();
    if (ExpertMetrics::Executor* counts = counts_of(group); counts != nullptr && job.submitted)
      counts->calls.add();
  }
}

Status Dispatcher::finish(Group& group, int layer) {
  for (Job& job : group.jobs) {
    TESSERA_TRY(collect(group, job, layer));
    submit_some(group, layer);
  }
  return {};
}

// Another shard has what the worker can take at a time. It gives that back when it is done or when
// its own deadline passes, so this ends; without `required` the host is faster.
void Dispatcher::wait_for_credit(Group& group, Job& job, int layer) {
  while (!job.submitted && job.refused.code == ErrorCode::exhausted) {
    std::this_thread::sleep_for(kCreditPause);
    Status taken = group.executor->submit(expert_job(group, job, layer));
    job.submitted = taken.ok();
    if (!taken) job.refused = std::move(taken).error();
  }
  if (!job.submitted) return;
  ++group.under_way;
  if (ExpertMetrics::Executor* counts = counts_of(group)) counts->calls.add();
}

Status Dispatcher::collect(Group& group, Job& job, int layer) {
  if (group.passed_over) return host_computes(group, job, layer);
  const auto start = Clock::now();
  if (!job.submitted && options_.required) wait_for_credit(group, job, layer);
  if (!job.submitted) return compute_on_host(group, job, layer, job.refused);
  group.raced = false;
  if (is_late(group) && race(group, job, layer, start)) return {};
  const Result<ExpertReport> report = group.executor->collect(sums_of(group, job));
  --group.under_way;
  count(group, expert_job(group, job, layer), report, start);
  group.served += report ? 1 : 0;
  group.late |= !report && report.error().code == ErrorCode::cancelled;
  if (!report) return compute_on_host(group, job, layer, report.error());
  if (group.raced && metrics_ != nullptr) metrics_->races_worker.add();
  if (group.failing && group.told_failing) {
    log_info("{} computes experts again", group.executor->name());
    group.told_failing = false;
  }
  group.failing = false;
  return {};
}

Status Dispatcher::compute_on_host(Group& group, Job& job, int layer, const Error& reason) {
  if (group.is_host) return reason;
  const WorkerFailure failure = failure_of(reason, job.submitted);
  if (options_.required && metrics_ != nullptr) metrics_->count_required_failure(failure);
  if (options_.required)
    return Error::make(ErrorCode::unavailable, "experts of layer {}: {}: {}", layer, group.name(),
                       reason.message);
  tell_failing(group, reason.message);
  if (metrics_ != nullptr) metrics_->count_fallback(failure);
  return host_computes(group, job, layer);
}

Status Dispatcher::host_computes(Group& group, const Job& job, int layer) {
  Group& host = *groups_.front();
  if (metrics_ != nullptr) metrics_->host.calls.add();
  const auto start = Clock::now();
  round_rows(group, job);
  TESSERA_TRY(host.executor->submit(expert_job(group, job, layer)));
  const Result<ExpertReport> report = host.executor->collect(sums_of(group, job));
  count(host, expert_job(group, job, layer), report, start);
  if (!report) return report.error();
  if (group.executor != nullptr && group.executor->rounds())
    group.executor->round_sums(sums_of(group, job));
  return {};
}

void Dispatcher::tell_failing(Group& group, std::string_view reason) {
  if (!group.failing && Clock::now() - group.told > kLogPause) {
    log_warn("the host computes experts of {}: {}", group.name(), reason);
    group.told = Clock::now();
    group.told_failing = true;
  }
  group.failing = true;
}

ExpertMetrics::Executor* Dispatcher::counts_of(const Group& group) const {
  if (metrics_ == nullptr) return nullptr;
  return group.is_host ? &metrics_->host : &metrics_->worker;
}

// A job that an executor was waited for since `start`. Its jobs compute one after another, from
// when they were submitted.
void Dispatcher::count(Group& by, const ExpertJob& job, const Result<ExpertReport>& report,
                       Clock::time_point start) {
  // What workers are held against is the host's time for experts that nobody has read ahead.
  if (by.is_host && report && !read_ahead_)
    host_pace_.learn(job.pairs.size(), static_cast<double>(report->compute_us));
  ExpertMetrics::Executor* counts = counts_of(by);
  if (counts == nullptr) return;
  const std::int64_t waited = microseconds_since(start);
  counts->wait_us.add(static_cast<std::uint64_t>(waited));
  if (!report) return;
  counts->pairs.add(job.pairs.size());
  count_cost(by, job, static_cast<double>(std::max(report->compute_us, waited)));
  const std::int64_t hidden =
      std::clamp<std::int64_t>(report->compute_us - waited, 0, by.hideable_us);
  by.hideable_us -= hidden;
  counts->hidden_us.add(static_cast<std::uint64_t>(hidden));
  metrics_->bytes_out.add(static_cast<std::uint64_t>(report->bytes_sent));
  metrics_->bytes_in.add(static_cast<std::uint64_t>(report->bytes_received));
}

// The placement reckons with tokens, so only jobs of one row can be held against it.
void Dispatcher::count_cost(const Group& by, const ExpertJob& job, double taken_us) {
  ExpertMetrics::Executor& counts = *counts_of(by);
  const std::uint64_t bytes = reads_.bytes(job.layer, job.pairs);
  counts.expert_bytes.add(bytes);
  if (job.n_rows != 1) return;
  counts.row_calls.add();
  counts.row_bytes.add(bytes);
  counts.predicted_us.add(by.cost.us(1, bytes));
  counts.taken_us.add(static_cast<std::uint64_t>(taken_us));
}

void Dispatcher::drop_all() {
  for (const auto& group : groups_)
    if (group->executor != nullptr) group->executor->drop();
}

void Dispatcher::observe(int layer, std::span<const RoutedPair> pairs) {
  cache_.observe(layer, pairs);
  if (metrics_ == nullptr) return;
  metrics_->pairs_resident.add(split_.resident().size());
  metrics_->expert_bytes_resident.add(reads_.bytes(layer, split_.resident()));
  metrics_->cache_hit.add(static_cast<std::uint64_t>(cache_.hits()));
  metrics_->cache_miss.add(static_cast<std::uint64_t>(cache_.misses()));
  if (!split_.all_resident()) metrics_->mixed_layers.add();
}

Status Dispatcher::between_steps(Device& device) {
  if (moving_) {
    const Result<bool> copied = device.expert_replaced();
    if (copied && !*copied) return {};
    const ExpertMove move = *std::exchange(moving_, std::nullopt);
    if (!copied) {
      cache_.stop();
      TESSERA_TRY(device.fault());
      // Nothing is lost: the expert stays where it was, and who left is where it belongs.
      const bool memory = copied.error().code == ErrorCode::exhausted;
      if (metrics_ != nullptr) (memory ? metrics_->cache_stopped : metrics_->cache_unread).add();
      log_warn("{}: no more experts are brought near: {}", device.name(), copied.error().message);
      return {};
    }
    cache_.done(move);
    if (metrics_ != nullptr) metrics_->cache_admit.add();
  }
  moving_ = cache_.next();
  if (!moving_) return {};
  const bool useful = cache_.begin(*moving_);
  if (metrics_ != nullptr && moving_->evicted >= 0) {
    metrics_->cache_evict.add();
    metrics_->cache_useless.add(useful ? 0 : 1);
  }
  device.begin_replace_expert(*moving_);
  return {};
}

}  // namespace tessera
