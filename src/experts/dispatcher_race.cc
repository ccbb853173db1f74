// What the dispatcher does while a worker is later than it should be: the host computes its job
// too, and whoever is first complete is used.
#include <algorithm>

#include "experts/dispatcher_group.h"

namespace tessera {
namespace {

// A worker's sums are noticed this part of the host's time late at most. More parts would have the
// host read the rows more often.
constexpr std::size_t kParts = 8;

// Where the part that begins at `begin` ends: behind the last pair of an expert.
template <typename Iterator>
Iterator end_of_part(Iterator begin, Iterator end, std::size_t least) {
  auto at = begin + std::min(static_cast<std::ptrdiff_t>(least), end - begin);
  while (at != end && at->expert == std::prev(at)->expert) ++at;
  return at;
}

}  // namespace

// A worker that shares its cores with this process, or whose sums are still on their way, needs
// some time when nothing else is done. A required one is waited for.
bool Dispatcher::is_late(const Group& group) const {
  if (group.is_host || options_.required) return false;
  return !group.executor->wait(std::max(group.executor->expected(), Clock::now() + options_.grace));
}

// Whether the host was first. That the worker was is known when its sums are good (collect()).
bool Dispatcher::race(Group& group, const Job& job, int layer, Clock::time_point waited_since) {
  const auto start = Clock::now();
  round_rows(group, job);
  const std::optional<ExpertReport> report = compute_beside(group, job, layer);
  // Nobody has won where the host's part fails before the worker's sums are there.
  group.raced = !report && group.executor->wait(Clock::time_point::min());
  if (!report) return false;
  if (metrics_ != nullptr) metrics_->races_host.add();
  if (group.executor->rounds()) group.executor->round_sums(sums_of(group, job));
  group.executor->give_up();
  --group.under_way;
  group.late = true;
  tell_failing(group, "its sums are late");
  Group& host = *groups_.front();
  if (metrics_ != nullptr) {
    metrics_->count_fallback(WorkerFailure::deadline);
    metrics_->worker.wait_us.add(microseconds_between(waited_since, start));
    metrics_->host.calls.add();
  }
  count(host, expert_job(group, job, layer), *report, start);
  return true;
}

// A few experts at a time, until the worker's sums are there, or the host cannot. Its own job is
// over by now, and so its buffers are free. What it has of the sums adds up where the worker's
// would replace them all.
std::optional<ExpertReport> Dispatcher::compute_beside(Group& group, const Job& job, int layer) {
  Group& host = *groups_.front();
  ExpertJob part = expert_job(group, job, layer);
  const std::span<double> sums = sums_of(group, job);
  const std::span<double> part_sums = std::span(host.sums).first(sums.size());
  const auto n = static_cast<std::size_t>(n_embd_);
  std::vector<RoutedPair>& pairs = host.pairs;
  pairs.assign(part.pairs.begin(), part.pairs.end());
  std::sort(pairs.begin(), pairs.end(),
            [](const RoutedPair& a, const RoutedPair& b) { return a.expert < b.expert; });
  const std::size_t least = std::max<std::size_t>(1, pairs.size() / kParts);
  std::fill(sums.begin(), sums.end(), 0.0);
  ExpertReport report;
  for (auto begin = pairs.begin(), end = begin; begin != pairs.end(); begin = end) {
    if (group.executor->wait(Clock::time_point::min())) return std::nullopt;
    end = end_of_part(begin, pairs.end(), least);
    std::sort(begin, end, [](const RoutedPair& a, const RoutedPair& b) { return a.row < b.row; });
    part.pairs = std::span(begin, end);
    if (!host.executor->submit(part)) return std::nullopt;
    const Result<ExpertReport> computed = host.executor->collect(part_sums);
    if (!computed) return std::nullopt;
    report.compute_us += computed->compute_us;
    for (std::int32_t before = -1; const RoutedPair& pair : part.pairs) {
      if (pair.row == std::exchange(before, pair.row)) continue;
      const auto at = static_cast<std::size_t>(pair.row) * n;
      for (std::size_t c = at; c < at + n; ++c) sums[c] += part_sums[c];
    }
  }
  return report;
}

}  // namespace tessera
