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
//
// A row alone asks for its few experts without a wait of the device, which can read some of them
// where they lie meanwhile: reads() divides them so that the later of the two is early. Where
// experts are foreseen both begin before it asks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "experts/options.h"

namespace tessera {

// What a job takes the host.
struct HostPace {
  double call_us = 0.0;
  double expert_us = 0.0;
  double pair_us = 0.0;
};

// Of the shortest jobs of one row with `many` experts and with `few`, and of `rows` rows with the
// same `many` each. Where the two of one row tell no more, the call's time is in the experts'.
struct HostTimes {
  std::size_t many = 1, few = 0, rows = 1;
  double many_us = 0.0, few_us = 0.0, rows_us = 0.0;

  HostPace pace() const {
    const double more = static_cast<double>((rows - 1) * many);
    const double pair_us = more > 0 ? std::max(0.0, rows_us - many_us) / more : 0.0;
    const double whole_us = many_us / static_cast<double>(many);
    const double slope_us = (many_us - few_us) / static_cast<double>(many - few);
    const bool tells = slope_us > pair_us && slope_us < whole_us;
    const double both_us = tells ? slope_us : whole_us;
    return {.call_us = tells ? many_us - static_cast<double>(many) * slope_us : 0.0,
            .expert_us = std::max(0.0, both_us - pair_us),
            .pair_us = pair_us};
  }
};

class StreamChoice {
 public:
  struct Work {
    int experts = 0;  // distinct
    std::size_t pairs = 0;
  };

  StreamChoice() = default;
  // `row`: of a row's job, whose experts both sides began to read `ahead_us` before.
  StreamChoice(ExpertStream mode, const HostPace& host, const HostPace& row, double ahead_us)
      : mode_(mode), host_(host), row_(row), ahead_us_(ahead_us) {}
  StreamChoice(ExpertStream mode, const HostPace& host) : StreamChoice(mode, host, host, 0.0) {}

  bool streams(const Work& work, double link_us) const {
    if (work.pairs == 0 || mode_ == ExpertStream::off) return false;
    return mode_ == ExpertStream::on || link_us < host_us(work);
  }

  double host_us(const Work& work) const { return us(host_, work); }

  // Of so many experts that a row lacks, how many the device reads, each of which would be copied
  // in `link_us`.
  int reads(int lacking, double link_us) const {
    if (mode_ != ExpertStream::automatic) return mode_ == ExpertStream::on ? lacking : 0;
    int best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int n = 0; n <= lacking; ++n) {
      const int left = lacking - n;
      const Work work{.experts = left, .pairs = static_cast<std::size_t>(left)};
      const double later = std::max(n > 0 ? kReadUs + n * kReadOverCopy * link_us - ahead_us_ : 0.0,
                                    left > 0 ? kAskUs + us(row_, work) : 0.0);
      if (later < least) least = later, best = n;
    }
    return best;
  }

 private:
  static double us(const HostPace& pace, const Work& work) {
    return pace.call_us + pace.expert_us * work.experts +
           pace.pair_us * static_cast<double>(work.pairs);
  }

  // A row's way to the host and that of its sum back. What two kernels that read over a link take
  // beside reading, and longer than a copy (docs/gpu.md, "Experts read over the link").
  static constexpr double kAskUs = 12.0;
  static constexpr double kReadUs = 14.0, kReadOverCopy = 1.05;

  ExpertStream mode_ = ExpertStream::off;
  HostPace host_, row_;
  double ahead_us_ = 0.0;
};

}  // namespace tessera
