// Piece: some rows of a batch on their way through the shards, and where a batch is cut into them.
//
//   std::vector<int> ends;
//   cut_batch(batch, 128, ends);                       // row numbers, the last one batch.rows()
//   piece.take(batch, 0, ends[0]);                     // copies all but the residual rows
//   device.begin(piece.view());
//
// A piece is a valid batch: the rows of a sequence stay in order and keep their positions, and the
// pieces of a batch, run one after the other on every shard, compute what the batch computes, with
// the same bits. It owns what its view shows, so that the caller's batch may change while later
// shards still work on the piece.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/batch.h"

namespace tessera {

// Rows of a sequence are cut at multiples of this from its first row in the batch, where the
// chunked form of the gated delta net has its own borders.
inline constexpr int kCutRows = 64;

// The ends of pieces of nearly equal size, at most max(max_rows, kCutRows + 1) rows each. A
// function of the batch and max_rows only.
void cut_batch(const BatchView& batch, int max_rows, std::vector<int>& ends);

// A change of state that must come before a piece's rows.
struct StateChange {
  enum class Kind : std::uint8_t { reset_slot, copy_slot, copy_page };
  Kind kind{};
  int kv_group = 0;
  int from = 0;
  int to = 0;
};

class Piece {
 public:
  // Room for the rows of `max_rows` x `n_embd`.
  void allocate(int max_rows, int n_embd);

  // Rows [begin, end) of the batch.
  void take(const BatchView& batch, int begin, int end);
  // The whole batch, which must not change while the piece is worked on. Has no residual rows.
  void refer(const BatchView& batch);
  void take_stop() { stop_ = true; }

  const BatchView& view() const { return view_; }
  // The residual rows between two shards.
  std::span<float> hidden() {
    return {hidden_.data(), tokens_.size() * static_cast<std::size_t>(n_embd_)};
  }
  bool stop() const { return stop_; }  // the last piece: the shards end

  // A piece that failed in one shard is not computed by the next ones.
  // keeps_state: only the piece's own sequences are spoilt.
  void fail(Error error, bool keeps_state) {
    error_ = std::move(error);
    keeps_state_ = keeps_state;
  }
  bool failed() const { return error_.has_value(); }
  bool keeps_state() const { return keeps_state_; }
  const Error& error() const { return *error_; }

  std::vector<StateChange> changes;  // before the rows, in order
  float* logits_out = nullptr;       // where its logits are gathered; nullptr: with the device

 private:
  void take_tables();

  int n_embd_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
  bool keeps_state_ = false;  // of a piece that failed
  BatchView view_;            // of what follows, or of a batch elsewhere
  std::vector<TokenId> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::int32_t> pages_;
  std::vector<std::span<const std::int32_t>> tables_;  // of pages_
  std::vector<float> hidden_;
};

}  // namespace tessera
