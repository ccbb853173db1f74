// ScriptedForward: a forward pass for tests. The logits after a token are a given function of all
// tokens of the sequence up to it. It keeps its own copy of KV pages and slots and checks every
// batch: each position comes once and in order, every visible position is found in its page, no
// page or slot has two owners, limits hold. It may run ahead, and then checks that as well: two
// batches at most are under way, none at a forward(), and their tokens are of the batch before.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/pipeline.h"
#include "sampling/choose.h"
#include "state/sequence_pool.h"

namespace tessera {

class ScriptedForward final : public ForwardPass {
 public:
  // Fills the logits of the token that follows `history`.
  using Script = std::function<void(std::span<const TokenId> history, std::span<float> logits)>;
  struct Limits {
    int max_rows = 1 << 20;
    int max_logit_rows = 1 << 20;
    int prefill_rows = 1 << 20;
  };

  ScriptedForward(int n_vocab, SequencePoolLayout layout, Limits limits, Script script)
      : layout_(std::move(layout)), limits_(limits), script_(std::move(script)) {
    spec_.n_vocab = spec_.n_token = n_vocab;
    spec_.context_length = 1 << 20;
    for (const SequencePoolLayout::Group& group : layout_.groups)
      pages_.emplace_back(static_cast<std::size_t>(group.pages));
    slots_.resize(static_cast<std::size_t>(layout_.slots));
  }

  const ModelSpec& spec() const override { return spec_; }
  ModelSpec& mutable_spec() { return spec_; }

  Status forward(const BatchView& batch) override {
    EXPECT_TRUE(begun_.empty()) << "a batch is under way";
    TESSERA_TRY(enter());
    chosen_ = compute(batch, batch.tokens);
    spoil(batch);
    if (const Error* why = spoilt_.any_of(batch)) return *why;
    return {};
  }

  // As a device does that chooses the tokens itself, where run_ahead() was called.
  bool may_begin(const BatchView& batch) override {
    std::lock_guard lock(mutex_);
    const std::span<const TokenChoice> choices = batch.choices.rows;
    return ahead_ && !spoils_ && begun_.size() < 2 && !choices.empty() &&
           std::all_of(choices.begin(), choices.end(), [](const TokenChoice& choice) {
             return choice.given == kNoToken && choice.n_top < 0;
           });
  }
  void begin(const BatchView& batch) override {
    ASSERT_LT(begun_.size(), 2u) << "two batches are under way";
    std::vector<TokenId> tokens(batch.tokens.begin(), batch.tokens.end());
    for (TokenId& token : tokens) {
      if (token >= 0) continue;
      const auto choice = static_cast<std::size_t>(token_of_choice(token));
      ASSERT_FALSE(begun_.empty()) << "the token is known";
      ASSERT_LT(choice, begun_.back().size());
      token = std::max(begun_.back()[choice].id, 0);
    }
    most_begun_ = std::max(most_begun_, begun_.size() + 1);
    begun_.push_back(compute(batch, tokens));
  }
  Status end() override {
    if (begun_.empty()) {
      ADD_FAILURE() << "no batch is under way";
      return {};
    }
    chosen_ = std::move(begun_.front());
    begun_.pop_front();
    Status status = enter();
    if (!status) begun_.clear();
    return status;
  }
  SpoiltSlots spoilt() override { return spoilt_; }

  std::span<const ChosenToken> chosen() override { return chosen_; }

  Status ready() const override {
    std::lock_guard lock(mutex_);
    return away_ ? Status(*away_) : Status();
  }
  std::vector<std::string> away() const override {
    std::lock_guard lock(mutex_);
    return away_ ? std::vector<std::string>{away_->message} : std::vector<std::string>();
  }
  Absence absence() const override {
    std::lock_guard lock(mutex_);
    return absence_;
  }
  Status restart() override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun_.empty()) << "a batch is under way";
    if (away_) return *away_;
    fault_.reset();
    due_ = false;
    return {};
  }
  bool restart_due() const override {
    std::lock_guard lock(mutex_);
    return due_;
  }

  void reset_slot(int slot) override {
    Slot& state = slots_.at(static_cast<std::size_t>(slot));
    state.history.clear();
    state.owner = ++owners_;
    const StateChange change{.kind = StateChange::Kind::reset_slot, .to = slot};
    spoilt_.apply({&change, 1});
  }

  // --- For the test's thread ---
  // Before the first step: batches may be begun.
  void run_ahead() { ahead_ = true; }
  void pause() {
    std::lock_guard lock(mutex_);
    paused_ = true;
  }
  // In the `count`-th forward() or end().
  void pause_at(int count) {
    std::lock_guard lock(mutex_);
    pause_at_ = count;
  }
  void resume() {
    std::lock_guard lock(mutex_);
    paused_ = false;
    changed_.notify_all();
  }
  // Until forward() or end() was entered `count` times in all.
  void wait_entered(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entered_ >= count; });
  }
  void break_with(Error error) {
    std::lock_guard lock(mutex_);
    fault_ = std::move(error);
  }
  // What ready() and restart() say from now on; restart() also ends what break_with() began.
  void set_away(std::optional<Error> away, Absence absence = Absence::lost) {
    std::lock_guard lock(mutex_);
    absence_ = away ? absence : Absence::none;
    away_ = std::move(away);
  }
  // What restart_due() says, until restart().
  void set_due() {
    std::lock_guard lock(mutex_);
    due_ = true;
  }
  // The next step spoils its sequences; or the next one of a sequence that began with a token,
  // that.
  void spoil_step(Error error, std::optional<TokenId> of = std::nullopt) {
    std::lock_guard lock(mutex_);
    spoils_ = Spoil{.why = std::move(error), .of = of};
  }
  bool keeps_state() const override { return !fault_; }
  // Rows of each step; only when the engine is idle.
  const std::vector<int>& rows() const { return rows_; }
  const std::vector<std::vector<int>>& logit_rows() const { return logit_rows_; }
  std::size_t most_begun() const { return most_begun_; }  // at the same time
  std::size_t under_way() const { return begun_.size(); }

 private:
  struct Slot {
    std::vector<TokenId> history;
    int owner = 0;
  };
  struct Cell {
    int owner = -1;
    int position = -1;
  };
  using Page = std::array<Cell, kPageTokens>;
  struct Spoil {
    Error why;
    std::optional<TokenId> of;
  };

  Status enter() {
    std::unique_lock lock(mutex_);
    ++entered_;
    changed_.notify_all();
    paused_ |= entered_ == pause_at_;
    changed_.wait(lock, [this] { return !paused_; });
    return fault_ ? Status(*fault_) : Status();
  }

  std::vector<ChosenToken> compute(const BatchView& batch, std::span<const TokenId> tokens) {
    check_shape(batch);
    logits_.assign(batch.logit_rows.size() * static_cast<std::size_t>(spec_.n_vocab), 0.0f);
    std::size_t logit_row = 0;
    std::set<int> slots;
    for (const SequenceRows& sequence : batch.sequences) {
      EXPECT_TRUE(slots.insert(sequence.slot).second) << "a slot stands twice in a batch";
      for (int i = 0; i < sequence.n_rows; ++i) {
        const int row = sequence.first_row + i;
        store(sequence, sequence.first_position + i, tokens[static_cast<std::size_t>(row)]);
        if (logit_row < batch.logit_rows.size() && batch.logit_rows[logit_row] == row)
          fill(sequence.slot, logit_row++);
      }
      check_visible(sequence);
    }
    EXPECT_EQ(logit_row, batch.logit_rows.size());
    EXPECT_EQ(logit_row, batch.choices.rows.size());
    std::vector<ChosenToken> chosen(logit_row);
    TokenChooser(spec_).choose(logits_, batch.choices, chosen);
    rows_.push_back(batch.rows());
    logit_rows_.emplace_back(batch.logit_rows.begin(), batch.logit_rows.end());
    return chosen;
  }

  void spoil(const BatchView& batch) {
    std::lock_guard lock(mutex_);
    bool done = false;
    for (const SequenceRows& sequence : batch.sequences) {
      const TokenId first = slots_.at(static_cast<std::size_t>(sequence.slot)).history.front();
      if (!spoils_ || (spoils_->of && spoils_->of != first)) continue;
      spoilt_.add({.sequences = {&sequence, 1}}, spoils_->why);
      done = true;
    }
    if (done) spoils_.reset();
  }

  void check_shape(const BatchView& batch) {
    EXPECT_GT(batch.rows(), 0);
    EXPECT_LE(batch.rows(), limits_.max_rows);
    EXPECT_LE(static_cast<int>(batch.logit_rows.size()), limits_.max_logit_rows);
    EXPECT_TRUE(std::is_sorted(batch.logit_rows.begin(), batch.logit_rows.end()));
    int next_row = 0;
    for (const SequenceRows& sequence : batch.sequences) {
      EXPECT_EQ(sequence.first_row, next_row);
      EXPECT_GT(sequence.n_rows, 0);
      EXPECT_LE(sequence.n_rows, layout_.max_chunk);
      EXPECT_EQ(sequence.pages.size(), layout_.groups.size());
      next_row += sequence.n_rows;
    }
    EXPECT_EQ(next_row, batch.rows());
    const auto sequences = static_cast<int>(batch.sequences.size());
    EXPECT_LE(batch.rows() - sequences, limits_.prefill_rows);
  }

  void store(const SequenceRows& sequence, int position, TokenId token) {
    Slot& slot = slots_.at(static_cast<std::size_t>(sequence.slot));
    EXPECT_EQ(static_cast<int>(slot.history.size()), position) << "a position is out of order";
    slot.history.push_back(token);
    for (std::size_t g = 0; g < layout_.groups.size(); ++g)
      cell(sequence, g, position) = {slot.owner, position};
  }

  Cell& cell(const SequenceRows& sequence, std::size_t group, int position) {
    const std::int32_t page =
        sequence.pages[group][static_cast<std::size_t>(position / kPageTokens)];
    EXPECT_NE(page, -1) << "the page of position " << position << " was given back";
    return pages_[group].at(
        static_cast<std::size_t>(page))[static_cast<std::size_t>(position % kPageTokens)];
  }

  // After all rows: a page with two owners would have lost the first one's cells.
  void check_visible(const SequenceRows& sequence) {
    const int owner = slots_[static_cast<std::size_t>(sequence.slot)].owner;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const int window = layout_.groups[g].window;
      const int oldest = window == 0 ? 0 : std::max(0, sequence.first_position - window + 1);
      for (int p = oldest; p < sequence.first_position + sequence.n_rows; ++p) {
        const Cell& found = cell(sequence, g, p);
        EXPECT_TRUE(found.owner == owner && found.position == p)
            << "position " << p << " of group " << g << " was overwritten";
      }
    }
  }

  void fill(int slot, std::size_t logit_row) {
    const auto n_vocab = static_cast<std::size_t>(spec_.n_vocab);
    script_(slots_[static_cast<std::size_t>(slot)].history,
            std::span(logits_).subspan(logit_row * n_vocab, n_vocab));
  }

  ModelSpec spec_;
  SequencePoolLayout layout_;
  Limits limits_;
  Script script_;
  std::vector<std::vector<Page>> pages_;
  std::vector<Slot> slots_;
  std::vector<float> logits_;
  std::vector<ChosenToken> chosen_;
  std::deque<std::vector<ChosenToken>> begun_;  // their tokens
  std::size_t most_begun_ = 0;
  bool ahead_ = false;
  std::vector<int> rows_;
  std::vector<std::vector<int>> logit_rows_;
  SpoiltSlots spoilt_;
  int owners_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false;
  int pause_at_ = 0;
  int entered_ = 0;
  std::optional<Error> fault_;
  std::optional<Error> away_;
  Absence absence_ = Absence::none;
  bool due_ = false;
  std::optional<Spoil> spoils_;
};

// Logits that hash the whole history: any token that is missing, doubled or foreign changes them.
inline void hashed_logits(std::span<const TokenId> history, std::span<float> logits) {
  std::uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const TokenId token : history)
    hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 0xD6E8FEB86659FD93u;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    hash = hash * 6364136223846793005u + 1442695040888963407u;
    logits[i] = static_cast<float>(hash >> 40) * (8.0f / (1 << 24));
  }
}

// The token that follows gets all the weight: `next` says which.
inline ScriptedForward::Script one_choice(
    std::function<TokenId(std::span<const TokenId> history)> next) {
  return [next = std::move(next)](std::span<const TokenId> history, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), -50.0f);
    logits[static_cast<std::size_t>(next(history))] = 10.0f;
  };
}

}  // namespace tessera
