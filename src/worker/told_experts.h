// ToldExperts: what a worker of layers says that it counted of its experts, as far as that can be.
//
//   ToldExperts told(hello, Clock::now());
//   told.sent(rows);                                               // with each job
//   TESSERA_ASSIGN(const ExpertCounts news, told.take(stats.experts, Clock::now()));
//
// A count of a connection never falls, and never passes the pairs of the rows that were sent: what
// does breaks the protocol (`invalid`); nor do bytes pass an expert in f32 for each. Times count at
// most what has passed since the beginning, as this end's clock has it; a host that slept is no
// liar. Threads: one at a time.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "experts/expert_metrics.h"
#include "worker/handshake.h"
#include "worker/transport.h"

namespace tessera::worker {

class ToldExperts {
 public:
  ToldExperts(const Hello& hello, Deadline begin);

  void sent(std::uint32_t rows) { most_pairs_ += rows * pairs_of_row_; }
  // What was not told before.
  Result<ExpertCounts> take(const ExpertCounts& told, Deadline now);

 private:
  std::uint64_t most_of(ExpertCountField::Unit unit, Deadline now) const;

  std::uint64_t pairs_of_row_;
  std::uint64_t most_bytes_of_pair_;
  std::uint64_t most_pairs_ = 0;
  Deadline begin_;
  ExpertCounts told_;     // last
  ExpertCounts counted_;  // given out so far
};

}  // namespace tessera::worker
