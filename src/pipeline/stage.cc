#include "pipeline/stage.h"

#include <algorithm>

namespace tessera {
namespace {

// Between two pieces a stage soon sleeps: the next may be a long way off.
constexpr std::chrono::microseconds kIdleSpin{100};
// An announced piece is at most a layer away, or the head.
constexpr std::chrono::microseconds kNearSpin{5000};

// Counters are 32 bits wide, to sleep on, and compare so that wrapping does not matter.
std::uint32_t counter_value(std::uint64_t count) {
  return static_cast<std::uint32_t>(count);
}

}  // namespace

PieceRing::PieceRing(int shards, const Piece::Size& size) {
  pieces_.resize(static_cast<std::size_t>(ring_pieces(shards)));
  int place = 0;
  for (Piece& piece : pieces_) piece.allocate(size, place++);
}

void StageProgress::wait_announced(std::uint64_t count) {
  announced_.wait_for(counter_value(count), kIdleSpin);
}

void StageProgress::wait_done(std::uint64_t count) {
  wait_announced(count);
  done_.wait_for(counter_value(count), kNearSpin);
}

bool StageProgress::is_done(std::uint64_t count) const {
  return done_.reached(counter_value(count));
}

bool Stage::run(PieceRing& ring, StageProgress& before) {
  if (taken_ == finished_ && !take(ring, before)) {
    progress_.announce();
    progress_.advance();
    return false;
  }
  const auto depth = static_cast<std::uint64_t>(shard_->depth());
  while (taken_ - finished_ < depth && before.is_done(taken_ + 1) && take(ring, before)) {
  }
  finish(ring[finished_]);
  ++finished_;
  return true;
}

// The next piece into the shard; false for the one that ends the stages, which is not taken.
bool Stage::take(PieceRing& ring, StageProgress& before) {
  before.wait_announced(taken_ + 1);
  Piece& piece = ring[taken_];
  if (piece.stop()) return false;
  // Also of a piece that failed before, which is known when the stage before is done with it and
  // not earlier: its changes concern other sequences too.
  Status status = shard_->prepare(piece);
  before.wait_done(taken_ + 1);
  if (!piece.failed()) {
    if (status) status = shard_->start(piece);
    if (!status) piece.fail(std::move(status).error(), shard_->keeps_state());
  }
  ++taken_;
  return true;
}

void Stage::finish(Piece& piece) {
  announced_ = false;
  if (!piece.failed()) {
    Status status = shard_->finish(piece, near_);
    if (!status) piece.fail(std::move(status).error(), shard_->keeps_state());
  }
  if (!piece.failed() && piece.logits_out != nullptr) {
    const std::span<const float> logits = shard_->logits();
    std::copy(logits.begin(), logits.end(), piece.logits_out);
  }
  if (!announced_) progress_.announce();
  progress_.advance();
}

}  // namespace tessera
