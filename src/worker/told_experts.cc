#include "worker/told_experts.h"

#include <algorithm>

namespace tessera::worker {

ToldExperts::ToldExperts(const Hello& hello, Deadline begin)
    : pairs_of_row_(std::uint64_t{hello.end_layer - hello.first_layer} * hello.dims.n_expert_used),
      begin_(begin) {}

Result<ExpertCounts> ToldExperts::take(const ExpertCounts& told, Deadline now) {
  const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(now - begin_).count();
  ExpertCounts news{};
  for (std::size_t i = 0; i < news.size(); ++i) {
    const bool time = is_time_of_experts(i);
    const std::uint64_t most = time ? static_cast<std::uint64_t>(passed) : most_pairs_;
    if (told[i] < told_[i])
      return Error::make(ErrorCode::invalid, "STATS with count {} fallen from {} to {}", i,
                         told_[i], told[i]);
    if (!time && told[i] > most)
      return Error::make(ErrorCode::invalid, "STATS with {} as count {} of jobs of {} pairs",
                         told[i], i, most);
    news[i] = std::min(told[i], most) - counted_[i];
  }
  told_ = told;
  for (std::size_t i = 0; i < news.size(); ++i) counted_[i] += news[i];
  return news;
}

}  // namespace tessera::worker
