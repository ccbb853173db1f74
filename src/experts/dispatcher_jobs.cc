// How a layer's pairs become jobs.
#include <algorithm>
#include <limits>

#include "experts/dispatcher_group.h"

namespace tessera {

// The rows that have pairs in the group, once each.
void Dispatcher::gather(Group& group, std::span<const RoutedPair> pairs,
                        std::span<const float> rows) {
  const auto n = static_cast<std::size_t>(n_embd_);
  group.rows.clear();
  group.pairs.clear();
  for (const RoutedPair& pair : pairs) {
    if (group.rows.empty() || group.rows.back() != pair.row) {
      const auto at = static_cast<std::size_t>(pair.row) * n;
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(at), n,
                  group.inputs.begin() + static_cast<std::ptrdiff_t>(group.rows.size() * n));
      group.rows.push_back(pair.row);
    }
    RoutedPair& own = group.pairs.emplace_back(pair);
    own.row = static_cast<std::int32_t>(group.rows.size()) - 1;
  }
  cut_jobs(group);
}

// A job has as many rows as the mode and the executor's limits allow.
void Dispatcher::cut_jobs(Group& group) const {
  group.jobs.clear();
  group.next = 0;
  group.under_way = 0;
  group.served = 0;
  group.late = false;
  // What a worker does not do is the host's.
  const ExpertLimits of_host = groups_.front()->executor->limits();
  ExpertLimits limits{.max_rows = std::min(options_.most_job_rows(), of_host.max_rows),
                      .max_pairs = std::numeric_limits<int>::max()};
  const bool by_host = group.is_host || group.passed_over;
  const auto& taker = by_host ? groups_.front()->executor : group.executor;
  if (taker != nullptr) {
    const ExpertLimits own = taker->limits();
    limits.max_pairs = std::max(1, own.max_pairs);
    limits.max_rows = by_host ? own.max_rows : std::min(limits.max_rows, own.max_rows);
  }
  for (std::size_t i = 0; i < group.pairs.size();) {
    const int row = group.pairs[i].row;
    std::size_t end = i;
    while (end < group.pairs.size() && group.pairs[end].row == row) ++end;
    const bool fits =
        !group.jobs.empty() && row - group.jobs.back().begin < limits.max_rows &&
        end - group.jobs.back().first_pair <= static_cast<std::size_t>(limits.max_pairs);
    if (!fits) group.jobs.push_back({.begin = row, .first_pair = i});
    Job& job = group.jobs.back();
    job.end = row + 1;
    job.end_pair = end;
    for (; i < end; ++i) group.pairs[i].row = row - job.begin;
  }
}

ExpertJob Dispatcher::expert_job(const Group& group, const Job& job, int layer) const {
  const auto n = static_cast<std::size_t>(n_embd_);
  const auto begin = static_cast<std::size_t>(job.begin), end = static_cast<std::size_t>(job.end);
  return {.layer = layer,
          .n_rows = job.end - job.begin,
          .rows = std::span(group.inputs).subspan(begin * n, (end - begin) * n),
          .pairs = std::span(group.pairs).subspan(job.first_pair, job.end_pair - job.first_pair),
          .host_us = host_pace_.us(job.end_pair - job.first_pair)};
}

void Dispatcher::round_rows(Group& group, const Job& job) {
  if (group.executor == nullptr || !group.executor->rounds()) return;
  const auto n = static_cast<std::size_t>(n_embd_);
  group.executor->round_rows(std::span(group.inputs)
                                 .subspan(static_cast<std::size_t>(job.begin) * n,
                                          static_cast<std::size_t>(job.end - job.begin) * n));
}

std::span<double> Dispatcher::sums_of(Group& group, const Job& job) const {
  const auto n = static_cast<std::size_t>(n_embd_);
  return std::span(group.sums)
      .subspan(static_cast<std::size_t>(job.begin) * n,
               static_cast<std::size_t>(job.end - job.begin) * n);
}

}  // namespace tessera
