// Stage: one shard of a pipeline of several, and the ring of pieces that goes through all of them.
//
// Pieces are numbered from 0 and every stage computes all of them in that order. Piece k lies in
// ring slot k mod size from the time the first stage takes it until the last one has done it, so
// nothing is allocated or queued for a hand-over: a stage may start piece k when the stage before
// has done it. A stage announces a piece before its last layer, so that the next one is awake and
// has begun the step when the rows arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "pipeline/piece.h"
#include "pipeline/stage_counter.h"
#include "plan/plan.h"

namespace tessera {

class PieceRing {
 public:
  // Between `shards` shards; pieces of at most max_rows rows.
  PieceRing(int shards, int max_rows, int n_embd);
  Piece& operator[](std::uint64_t number) { return pieces_[number % pieces_.size()]; }
  std::uint64_t size() const { return pieces_.size(); }

 private:
  std::vector<Piece> pieces_;
};

class Stage {
 public:
  Stage(std::unique_ptr<Device> device, const ShardLayout& layout)
      : device_(std::move(device)),
        first_layer_(layout.first_layer),
        end_layer_(layout.end_layer),
        head_(layout.head) {}

  Device& device() { return *device_; }

  // Computes piece `number`, which lies in the ring; `before` is the stage before, nullptr for the
  // first. Returns false for the piece that ends the stages.
  bool run(PieceRing& ring, std::uint64_t number, Stage* before);

  // Waits until this stage has done `count` pieces.
  void wait_done(std::uint64_t count);

  // The whole step of a pipeline that has no other stage.
  void run_alone(const BatchView& batch);

  void apply(const StateChange& change);

 private:
  void layers(int begin, int end);

  std::unique_ptr<Device> device_;
  int first_layer_;
  int end_layer_;
  bool head_;
  StageCounter announced_;  // pieces that are nearly done
  StageCounter done_;
};

}  // namespace tessera
