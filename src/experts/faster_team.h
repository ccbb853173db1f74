// FasterTeam: which of two teams of threads computes small jobs sooner, found by trying.
//
//   const int team = faster.next();               // 0 or 1
//   compute(job, teams[team]);
//   faster.learn(team, took_us / pairs);
//
// Cores that share their units, a virtual machine's or other programs' make it unknowable
// beforehand: on 32 virtual cores, of which others took some, 15 threads read experts 1.5 times as
// fast as 31, since a job ends with its last piece (docs/results-gpu.md). They take turns, kBlock
// jobs each, of which the first only wakes who slept, until kBlocks of each are known; then the
// faster one computes, and the other one is tried again for a block after every kPause jobs. Of a
// block counts the median of its last jobs: one that another program held up says nothing. Which
// team computes changes no bit. Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace tessera {

class FasterTeam {
 public:
  static constexpr int kBlock = 8, kBlocks = 3, kPause = 1024;
  static constexpr double kBetter = 0.95;  // of the other's time, to be used in its place

  int next() const { return tried_; }

  // True: from now on another one computes.
  bool learn(int team, double pair_us) {
    if (at_ > 0) last_[static_cast<std::size_t>(at_) % last_.size()] = pair_us;
    ++at_;
    if (at_ < (tried_ == chosen_ && known() ? kPause : kBlock)) return false;
    return end_block(team);
  }
  int chosen() const { return chosen_; }

 private:
  struct Known {
    int blocks = 0;
    double pair_us = 0;  // mean of the blocks
  };

  bool known() const { return team_[0].blocks >= kBlocks && team_[1].blocks >= kBlocks; }

  bool end_block(int team) {
    Known& mine = team_[static_cast<std::size_t>(team)];
    std::nth_element(last_.begin(), last_.begin() + last_.size() / 2, last_.end());
    const double median = last_[last_.size() / 2];
    // Of what is long past little is left.
    mine.pair_us += (median - mine.pair_us) / std::min(++mine.blocks, kBlocks);
    at_ = 0;
    const int before = chosen_;
    if (known() && other().pair_us < kBetter * team_[static_cast<std::size_t>(chosen_)].pair_us)
      chosen_ = 1 - chosen_;
    tried_ = known() && team != before ? chosen_ : 1 - team;
    return chosen_ != before;
  }
  const Known& other() const { return team_[static_cast<std::size_t>(1 - chosen_)]; }

  std::array<Known, 2> team_;
  int chosen_ = 0;
  int tried_ = 0;
  int at_ = 0;  // jobs of the block
  std::array<double, kBlock - 1> last_{};
};

}  // namespace tessera
