#include "worker/told_experts.h"

#include <algorithm>

namespace tessera::worker {

using Unit = ExpertCountField::Unit;

ToldExperts::ToldExperts(const Hello& hello, Deadline begin)
    : pairs_of_row_(std::uint64_t{hello.end_layer - hello.first_layer} * hello.dims.n_expert_used),
      most_bytes_of_pair_(std::uint64_t{3 * sizeof(float)} * hello.dims.n_embd *
                          hello.dims.n_ff_expert),
      begin_(begin) {}

std::uint64_t ToldExperts::most_of(Unit unit, Deadline now) const {
  if (unit == Unit::microseconds)
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now - begin_).count());
  if (unit == Unit::number) return most_pairs_;
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(most_pairs_, most_bytes_of_pair_, &bytes) ? ~std::uint64_t{0}
                                                                          : bytes;
}

Result<ExpertCounts> ToldExperts::take(const ExpertCounts& told, Deadline now) {
  ExpertCounts news;
  for (std::size_t i = 0; i < kExpertCountFields.size(); ++i) {
    const auto [field, unit] = kExpertCountFields[i];
    const std::uint64_t most = most_of(unit, now);
    if (told.*field < told_.*field)
      return Error::make(ErrorCode::invalid, "STATS with count {} fallen from {} to {}", i,
                         told_.*field, told.*field);
    if (unit != Unit::microseconds && told.*field > most)
      return Error::make(ErrorCode::invalid, "STATS with {} as count {} of jobs of {} pairs",
                         told.*field, i, most_pairs_);
    news.*field = std::min(told.*field, most) - counted_.*field;
  }
  told_ = told;
  for (const ExpertCountField& field : kExpertCountFields)
    counted_.*field.value += news.*field.value;
  return news;
}

}  // namespace tessera::worker
