// ExpertMover: copies experts of a shard from the file into its packed weights, beside its steps.
//
//   TESSERA_ASSIGN(auto mover, ExpertMover::create(weights, model));
//   mover->begin({.layer = 3, .expert = 7, .evicted = 2});   // between steps: 2 is not here now
//   ...                                                      // steps, without either
//   TESSERA_ASSIGN(const bool here, mover->finish());        // between steps: 7 is, once true
//
// A thread of its own packs the expert into a place that no step reads, with less claim to the
// cores than those of the steps. One move at a time.
//
// Ownership: weights and model must outlive it; its destructor waits for a copy that has begun.
// begin() and finish() are for the thread that drives the device, allocate nothing and never wait.
// Errors: finish() says where the file could not be read; the place is spare then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "device/cpu/weights.h"
#include "model/model.h"

namespace tessera::cpu {

class ExpertMover {
 public:
  static Result<std::unique_ptr<ExpertMover>> create(Weights& weights, const Model& model);
  ~ExpertMover();

  void begin(const ExpertMove& move);
  Result<bool> finish();

 private:
  enum class State { idle, asked, copied, over };

  ExpertMover(Weights& weights, const Model& model);
  void run();

  Weights& weights_;
  const Model& model_;
  ExpertMove move_;
  std::int32_t place_ = 0;   // of the layer, where it goes
  std::vector<float> rows_;  // room for packing
  std::mutex mutex_;         // state_
  std::condition_variable changed_;
  State state_ = State::idle;
  std::thread thread_;
};

}  // namespace tessera::cpu
