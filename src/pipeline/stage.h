// Stage: one shard's place in a pipeline of several, and the ring of pieces that goes through all
// of them.
//
// Pieces are numbered from 0 and every stage computes all of them in that order. Piece k lies in
// ring slot k mod size from the time the pipeline fills it until the last stage has done it, so
// nothing is allocated or queued for a hand-over: a stage may start piece k when the stage before
// has done it. A stage announces a piece shortly before it is done, so that the next one is awake
// and has begun the step when the rows arrive. A shard that takes several pieces at a time gets
// those that are there.
//
// A piece that failed goes on through the ring with its error, uncomputed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/step_counter.h"
#include "pipeline/piece.h"
#include "pipeline/shard.h"

namespace tessera {

class PieceRing {
 public:
  // Between `shards` shards.
  PieceRing(int shards, const Piece::Size& size);
  Piece& operator[](std::uint64_t number) { return pieces_[number % pieces_.size()]; }
  std::uint64_t size() const { return pieces_.size(); }

 private:
  std::vector<Piece> pieces_;
};

// How far a stage has come. Counts pieces.
class StageProgress {
 public:
  void announce() { announced_.advance(); }
  void advance() { done_.advance(); }
  // Until `count` pieces were announced, or are done.
  void wait_announced(std::uint64_t count);
  void wait_done(std::uint64_t count);
  bool is_done(std::uint64_t count) const;

 private:
  StepCounter announced_;
  StepCounter done_;
};

class Stage {
 public:
  explicit Stage(std::unique_ptr<Shard> shard)
      : shard_(std::move(shard)), near_([this] {
          announced_ = true;
          progress_.announce();
        }) {}

  Shard& shard() { return *shard_; }
  StageProgress& progress() { return progress_; }

  // Computes the next piece of the ring, and takes more that are there; `before` is the progress of
  // the stage before. Returns false after the piece that ends the stages.
  bool run(PieceRing& ring, StageProgress& before);

 private:
  bool take(PieceRing& ring, StageProgress& before);
  void finish(Piece& piece);

  std::unique_ptr<Shard> shard_;
  std::function<void()> near_;
  bool announced_ = false;  // the piece that is finished
  StageProgress progress_;
  std::uint64_t taken_ = 0;     // pieces started
  std::uint64_t finished_ = 0;  // of them
};

}  // namespace tessera
