// Piece: some rows of a batch on their way through the shards, and where a batch is cut into them.
//
//   std::vector<RowRange> ranges;
//   cut_batch(batch, 128, ranges);                     // all rows of the batch
//   piece.take(batch, ranges[0]);                      // copies all but the residual rows
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

// Rows [begin, end) of a batch.
struct RowRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

// Pieces of nearly equal size, at most max(max_rows, kCutRows + 1) rows each. A
// function of the batch and max_rows only.
void cut_batch(const BatchView& batch, int max_rows, std::vector<RowRange>& ranges);

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
  // Room for its residual rows.
  struct Size {
    int max_rows = 0;
    int n_embd = 0;
  };
  void allocate(const Size& size, int place = 0);

  void take(const BatchView& batch, RowRange rows);
  // The whole batch, which must not change while the piece is worked on.
  void refer(const BatchView& batch);
  void take_stop() { stop_ = true; }

  const BatchView& view() const { return view_; }
  // The residual rows between two shards.
  std::span<float> hidden() {
    return {hidden_.data(),
            static_cast<std::size_t>(view_.rows()) * static_cast<std::size_t>(n_embd_)};
  }
  int place() const { return place_; }  // among the pieces that may be under way
  bool stop() const { return stop_; }   // the last piece: the shards end

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
  // Where the shard with the head puts a token for each of the view's choices.
  std::span<ChosenToken> chosen_out;

 private:
  void take_logit_rows(const BatchView& batch, RowRange rows);
  void take_tables();

  int n_embd_ = 0;
  int place_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
  bool keeps_state_ = false;  // of a piece that failed
  BatchView view_;            // of what follows, or of a batch elsewhere
  std::vector<TokenId> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<TokenChoice> choices_;
  std::vector<LogitChange> logit_changes_;
  std::vector<std::int32_t> pages_;
  std::vector<std::span<const std::int32_t>> tables_;  // of pages_
  std::vector<float> hidden_;
};

}  // namespace tessera
