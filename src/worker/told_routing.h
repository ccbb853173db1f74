// ToldRouting: how often a worker says that its layers chose each expert, as far as that can be.
//
//   ToldRouting told(hello, &counts);
//   told.answered(rows);                                 // with each answer to a job
//   if (const auto layer = told.ask()) ...               // the next of which something may be new
//   TESSERA_TRY(told.take(frame.body()));                // and what it answers: now in counts
//
// A worker answers in order, so of what it tells all jobs were answered before: no count passes
// their rows, since an expert is chosen once a row at most, nor do those of a layer together pass
// the experts that these rows use. What does breaks the protocol (`invalid`), and nothing of it is
// counted. Of a job that was lost with its worker nothing was told, so it may be computed again.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "experts/routing_counts.h"
#include "worker/messages.h"

namespace tessera::worker {

class ToldRouting {
 public:
  // `counts`, of the model of `hello`, must outlive it; null: nothing is asked for.
  ToldRouting(const Hello& hello, RoutingCounts* counts);

  void answered(std::uint32_t rows) { rows_ += rows; }
  // Layers in turn; nothing where all was asked for since the last job was answered.
  std::optional<std::uint16_t> ask();
  bool is_due() const { return next() != layers_.size(); }
  // The body of ROUTED that answers what ask() said last.
  Status take(std::span<const std::byte> body);

 private:
  struct Layer {
    int number = 0;
    std::uint64_t asked_at = 0;       // rows_ then
    std::uint64_t pairs = 0;          // told
    std::vector<std::uint64_t> told;  // of each expert
  };
  std::size_t next() const;

  RoutingCounts* counts_;
  std::uint64_t rows_ = 0;
  std::vector<Layer> layers_;  // those with experts
  std::size_t turn_ = 0;
  std::size_t asked_ = 0;         // of layers_, last
  std::uint64_t rows_asked_ = 0;  // rows_ then
  std::vector<std::uint32_t> news_;
};

}  // namespace tessera::worker
