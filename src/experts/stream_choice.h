// StreamChoice: whether a layer's pairs away go to the device, whose link their experts' weights
// then cross, or to the host.
//
//   StreamChoice choice(options.stream, {.expert_us = 15.0, .pair_us = 5.0});
//   choice.streams({.experts = 200, .pairs = 4000}, device.stream_us(layer, 200));    // true
//
// Each expert costs the host reading its weights, and each pair computing with them; the link
// carries an expert once, however many pairs it has. So few rows are the host's and many the
// device's. The speeds are those that were measured when the model was loaded, and not of late: the
// two round otherwise, and the same prompt shall have the same answer. All pairs of a layer go one
// way, since fetching the rows for a few of them costs the device as much as for all.
#pragma once

#include <cstddef>

#include "experts/options.h"

namespace tessera {

// What a job takes the host.
struct HostPace {
  double expert_us = 0.0;
  double pair_us = 0.0;
};

class StreamChoice {
 public:
  struct Work {
    int experts = 0;  // distinct
    std::size_t pairs = 0;
  };

  StreamChoice() = default;
  StreamChoice(ExpertStream mode, const HostPace& host) : mode_(mode), host_(host) {}

  bool streams(const Work& work, double link_us) const {
    if (work.pairs == 0 || mode_ == ExpertStream::off) return false;
    return mode_ == ExpertStream::on || link_us < host_us(work);
  }

  double host_us(const Work& work) const {
    return host_.expert_us * work.experts + host_.pair_us * static_cast<double>(work.pairs);
  }

 private:
  ExpertStream mode_ = ExpertStream::off;
  HostPace host_;
};

}  // namespace tessera
