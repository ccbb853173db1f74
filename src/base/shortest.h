// Shortest: the shortest of several times of the same thing, which counts since other work on the
// machine only adds; and whether the shortest may have such work in it too.
//
//   Shortest time;
//   for (int i = 0; i < 3 || (i < 40 && !time.steady()); ++i) time.add(measure());
//   use(time.seconds());
//
// Pure.
#pragma once

#include <algorithm>
#include <limits>

namespace tessera {

class Shortest {
 public:
  void add(double seconds) {
    second_ = std::min(second_, std::max(seconds_, seconds));
    seconds_ = std::min(seconds_, seconds);
  }
  double seconds() const { return seconds_; }
  // By which the second shortest is longer: 0.1 is 10 %.
  double spread() const { return second_ / seconds_ - 1.0; }
  bool steady() const { return spread() <= kSteady; }

 private:
  static constexpr double kSteady = 0.03;
  double seconds_ = std::numeric_limits<double>::max();
  double second_ = std::numeric_limits<double>::infinity();
};

}  // namespace tessera
