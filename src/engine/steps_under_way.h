// StepsUnderWay: the steps that were begun and have not ended, oldest first, and whose rows they
// hold. Two at most: the second one is begun before the tokens of the first are read.
//
//   StepUnderWay& step = steps.add(now);
//   step.parts.push_back({generation, rows});
//   steps.forget_ended();                       // before these are destroyed
//   steps.oldest(); ... steps.end_oldest();
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "engine/generation.h"

namespace tessera {

struct StepUnderWay {
  struct Part {
    Generation* generation = nullptr;  // null: it has ended, its rows are computed in vain
    int rows = 0;
  };
  std::vector<Part> parts;
  int rows = 0;
  std::size_t choices = 0;
  EngineClock::time_point begun;
};

class StepsUnderWay {
 public:
  void reserve(int sequences) {
    for (StepUnderWay& step : steps_) step.parts.reserve(static_cast<std::size_t>(sequences));
  }

  bool empty() const { return size_ == 0; }
  StepUnderWay& oldest() {
    CHECK(!empty(), "no step is under way");
    return steps_[0];
  }

  StepUnderWay& add(EngineClock::time_point now) {
    CHECK(size_ < steps_.size(), "{} steps are under way", size_);
    StepUnderWay& step = steps_[size_++];
    step.parts.clear();
    step.begun = now;
    return step;
  }
  void end_oldest() {
    CHECK(!empty(), "no step is under way");
    std::rotate(steps_.begin(), steps_.begin() + 1, steps_.end());
    --size_;
  }
  // The one that was added last, which was not begun after all.
  void take_back() { --size_; }
  void clear() { size_ = 0; }

  void forget_ended() {
    for (std::size_t i = 0; i < size_; ++i)
      for (StepUnderWay::Part& part : steps_[i].parts)
        if (part.generation != nullptr && part.generation->done()) part.generation = nullptr;
  }

 private:
  std::array<StepUnderWay, kMostUnderWay> steps_;
  std::size_t size_ = 0;
};

}  // namespace tessera
