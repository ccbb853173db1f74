// What the dispatcher gives to one executor in a layer, for its own files (dispatcher.cc,
// dispatcher_jobs.cc, dispatcher_race.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "experts/dispatcher.h"

namespace tessera {

inline std::uint64_t microseconds_between(std::chrono::steady_clock::time_point begin,
                                          std::chrono::steady_clock::time_point end) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count());
}

// Rows [begin, end) of a group as one job.
struct Dispatcher::Job {
  int begin = 0;
  int end = 0;
  std::size_t first_pair = 0;
  std::size_t end_pair = 0;
  bool submitted = false;
  Error refused{};  // why it was not
};

// What goes to one executor in a layer: its rows of the batch close together, and their pairs.
struct Dispatcher::Group {
  std::unique_ptr<ExpertExecutor> executor;
  std::string name() const { return executor ? executor->name() : "a worker"; }

  bool is_host = false;
  int worker = -1;  // the number of it, if it is one
  PlacedCost cost{};
  bool failing = false;       // its last job failed
  Clock::time_point told{};   // when a failure was last logged
  bool told_failing = false;  // and not yet that it is over

  std::vector<std::int32_t> rows;  // of the batch, rising
  std::vector<float> inputs;       // [rows][n_embd]
  std::vector<double> sums;        // [rows][n_embd]
  std::vector<RoutedPair> pairs;   // by row; row: from the first one of the job
  std::vector<Job> jobs;
  std::size_t next = 0;  // job to submit
  int under_way = 0;
  int served = 0;                // jobs that it computed
  bool late = false;             // with one of them
  bool raced = false;            // and its sums came before the host's of the job at hand
  bool passed_over = false;      // the host computes its jobs
  std::int64_t submit_us = 0;    // spent on giving it the first ones
  std::int64_t hideable_us = 0;  // of its computation so much can have gone unnoticed
};

}  // namespace tessera
