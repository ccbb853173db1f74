#include "worker/told_experts.h"

#include <algorithm>

namespace tessera::worker {

ToldExperts::ToldExperts(const Hello& hello, Deadline begin)
    : pairs_of_row_(std::uint64_t{hello.end_layer - hello.first_layer} * hello.dims.n_expert_used),
      most_bytes_of_pair_(std::uint64_t{3 * sizeof(float)} * hello.dims.n_embd *
                          hello.dims.n_ff_expert),
      begin_(begin) {}

std::uint64_t ToldExperts::most_of(std::size_t i, Deadline now) const {
  if (is_time_of_experts(i))
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now - begin_).count());
  if (!is_bytes_of_experts(i)) return most_pairs_;
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(most_pairs_, most_bytes_of_pair_, &bytes) ? ~std::uint64_t{0}
                                                                          : bytes;
}

Result<ExpertCounts> ToldExperts::take(const ExpertCounts& told, Deadline now) {
  ExpertCounts news{};
  for (std::size_t i = 0; i < news.size(); ++i) {
    const std::uint64_t most = most_of(i, now);
    if (told[i] < told_[i])
      return Error::make(ErrorCode::invalid, "STATS with count {} fallen from {} to {}", i,
                         told_[i], told[i]);
    if (!is_time_of_experts(i) && told[i] > most)
      return Error::make(ErrorCode::invalid, "STATS with {} as count {} of jobs of {} pairs",
                         told[i], i, most_pairs_);
    news[i] = std::min(told[i], most) - counted_[i];
  }
  told_ = told;
  for (std::size_t i = 0; i < news.size(); ++i) counted_[i] += news[i];
  return news;
}

}  // namespace tessera::worker
