// LeastTimes: pairs of times of the same two things, of which the least count, since other work on
// the machine only adds; and when there are enough of them.
//
//   for (LeastTimes times; !times.enough();) times.add(measure_piece(), measure_row());
//
// Until a second time is nearly as short as the least, that may have such work in it too: then
// there are more, up to a limit, and spread() says by how much they differ. Pure.
#pragma once

#include <algorithm>

#include "base/shortest.h"

namespace tessera {

class LeastTimes {
 public:
  void add(double piece_s, double row_s) {
    piece_.add(piece_s);
    row_.add(row_s);
    spent_s_ += piece_s + row_s;
    ++rounds_;
  }
  bool enough() const {
    if (rounds_ < kLeastRounds || (rounds_ < kEnoughRounds && spent_s_ <= kEnoughSeconds))
      return false;
    return (piece_.steady() && row_.steady()) || rounds_ >= kMostRounds || spent_s_ > kMostSeconds;
  }

  double piece_s() const { return piece_.seconds(); }
  double row_s() const { return row_.seconds(); }
  // By which the second least is longer, of the one that is less steady: 0.1 is 10 %.
  double spread() const { return std::max(piece_.spread(), row_.spread()); }

 private:
  static constexpr int kLeastRounds = 3;
  static constexpr int kEnoughRounds = 12;
  static constexpr double kEnoughSeconds = 0.3;
  static constexpr int kMostRounds = 60;
  static constexpr double kMostSeconds = 1.0;

  Shortest piece_, row_;
  double spent_s_ = 0.0;
  int rounds_ = 0;
};

}  // namespace tessera
