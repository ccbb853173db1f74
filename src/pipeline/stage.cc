#include "pipeline/stage.h"

#include <algorithm>

namespace tessera {
namespace {

// Between two pieces a stage soon sleeps: the next may be a long way off.
constexpr std::chrono::microseconds kIdleSpin{100};
// An announced piece is at most a layer away, or the head.
constexpr std::chrono::microseconds kNearSpin{2000};

// Counters are 32 bits wide, to sleep on, and compare so that wrapping does not matter.
void wait(StageCounter& counter, std::uint64_t count, std::chrono::microseconds spin) {
  counter.wait_for(static_cast<std::uint32_t>(count), spin);
}

}  // namespace

PieceRing::PieceRing(int shards, int max_rows, int n_embd) {
  // Two before every shard but the first, and the one that the first works on.
  pieces_.resize(static_cast<std::size_t>(kPiecesPerBoundary * (shards - 1) + 1));
  for (Piece& piece : pieces_) piece.allocate(max_rows, n_embd);
}

bool Stage::run(PieceRing& ring, std::uint64_t number, Stage* before) {
  if (before != nullptr) wait(before->announced_, number + 1, kIdleSpin);
  Piece& piece = ring[number];
  if (piece.stop()) {
    announced_.advance();
    done_.advance();
    return false;
  }
  for (const StateChange& change : piece.changes) apply(change);
  device_->begin(piece.view());
  if (before == nullptr) {
    device_->embed();
  } else {
    wait(before->done_, number + 1, kNearSpin);
    device_->write_hidden(piece.hidden());
  }
  if (head_) {
    layers(first_layer_, end_layer_);
    announced_.advance();
    device_->head();
    if (piece.logits_out != nullptr) {
      const std::span<const float> logits = device_->logits();
      std::copy(logits.begin(), logits.end(), piece.logits_out);
    }
  } else {
    layers(first_layer_, end_layer_ - 1);
    announced_.advance();
    layers(end_layer_ - 1, end_layer_);
    device_->read_hidden(piece.hidden());
  }
  done_.advance();
  return true;
}

void Stage::wait_done(std::uint64_t count) {
  wait(announced_, count, kIdleSpin);
  wait(done_, count, kNearSpin);
}

void Stage::run_alone(const BatchView& batch) {
  device_->begin(batch);
  device_->embed();
  layers(first_layer_, end_layer_);
  device_->head();
}

void Stage::layers(int begin, int end) {
  for (int layer = begin; layer < end; ++layer) {
    device_->mixer(layer);
    device_->route(layer);
    device_->all_experts(layer);
    device_->dense(layer);
    device_->finish_ffn(layer);
  }
}

void Stage::apply(const StateChange& change) {
  switch (change.kind) {
    case StateChange::Kind::reset_slot:
      return device_->reset_slot(change.to);
    case StateChange::Kind::copy_slot:
      return device_->copy_slot(change.from, change.to);
    case StateChange::Kind::copy_page:
      return device_->copy_page(change.kv_group, change.from, change.to);
  }
}

}  // namespace tessera
