// Pipeline: the one way to run a model. One device is a pipeline of one shard.
//
//   TESSERA_ASSIGN(auto shards, open_shards(plan, options));
//   TESSERA_ASSIGN(auto pipeline, Pipeline::load(model, plan, std::move(shards), progress));
//   TESSERA_TRY(pipeline->forward(batch));               // all layers of all shards
//   std::span<const ChosenToken> tokens = pipeline->chosen();  // of a batch with choices; else:
//   std::span<const float> logits = pipeline->logits();        // [logit rows][n_vocab]
//
// One thread (the engine's) drives it and computes the first shard; every other shard has a thread
// of its own. forward() cuts a batch of many rows into pieces, which go through the shards one
// after the other, so that all shards work at the same time. A batch of one piece that asks for
// logits leaves nothing to overlap when nothing is under way: where the shards after the first
// compute elsewhere, the caller's thread takes it through all of them, without waking another. A
// batch is done up to its last piece that asks for logits when forward() returns; what comes after
// that may still be in the later shards, and the next batch follows it. So rows that ask for logits
// stand best at a batch's begin. The batch and what it points to may change as soon as forward()
// returns.
//
// logits() and chosen() are the last batch's and valid until the next forward(). A batch with
// choices has tokens and no logits: they stay where the head is. State is that of a sequence
// over all shards: it is reset and copied as one, in order with the batches. The batch must keep to
// the plan's limits (CHECKed by the device). One shard runs without further threads and copies.
//
// A batch that may_begin() can be begun while one other is under way, so that the device goes from
// one to the next without the host, or several devices that pass rows and tokens on by themselves;
// the calling thread takes it through all shards:
//
//   if (pipeline->may_begin(a)) pipeline->begin(a);  // waits for nothing
//   if (pipeline->may_begin(b)) pipeline->begin(b);  // its tokens may be token_of_choice() of `a`
//   TESSERA_TRY(pipeline->end());                    // of `a`: chosen() has its tokens
//
// Each end() is of the oldest. A batch may change as soon as begin() returns. What is done to the
// state in between comes behind all that is under way and before the next batch, so a sequence that
// ends may give back its slot and pages though a batch begun still has a row of it. forward() and
// restart() are not called with a batch under way. end() fails where forward() would, and then
// leaves none under way; its state is lost, never that of some sequences alone.
//
// forward() fails with ErrorCode::unavailable after stop(), and when a shard was lost (a worker
// that died), then also for a batch before this one. The state of every sequence is lost with it,
// in all shards: forward() goes on failing until restart(), which forgets all of it and succeeds
// once every shard is there again. A worker that is lost between two batches is found out by the
// next one, unless restart() is called before: so whoever has no sequence alive calls it before the
// first forward() of a new one.
//
// Where a piece alone cannot be computed (experts/dispatcher.h) its sequences are spoilt and
// nothing else: keeps_state() then says so. A batch with rows of spoilt ones fails with their
// error; what it gives for the others is good. That may be known only after forward() has returned,
// but no logits or tokens that it gave were of a sequence that was spoilt before. spoilt() says
// which are.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "device/batch.h"
#include "pipeline/shard.h"
#include "pipeline/spoilt_slots.h"
#include "pipeline/stage.h"
#include "pipeline/thread_binding.h"
#include "plan/plan.h"
#include "state/sequence_pool.h"

namespace tessera {

// What the engine needs of a pipeline; tests put a scripted one in its place.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual Status forward(const BatchView& batch) = 0;
  // A token for each choice of the last batch.
  virtual std::span<const ChosenToken> chosen() = 0;
  virtual void reset_slot(int slot) = 0;

  // Whether the batch may be begun instead, before the one ahead of it has ended.
  virtual bool may_begin(const BatchView&) { return false; }
  virtual void begin(const BatchView& batch);
  // Of the oldest batch begun, whose tokens are then chosen().
  virtual Status end();

  // Whether a new sequence could be computed; any thread.
  virtual Status ready() const { return {}; }
  virtual Absence absence() const { return Absence::none; }
  // A line for each part that is away, whether that needs it or something else stands in; any
  // thread.
  virtual std::vector<std::string> away() const { return {}; }
  // Forgets the state of all sequences if that is needed to go on.
  virtual Status restart() { return {}; }
  // Whether restart() would put another in the place of who computes now. It is worth a moment with
  // no sequence alive, and nothing is wrong without.
  virtual bool restart_due() const { return false; }
  // Whether a forward() that failed spoilt some sequences only.
  virtual bool keeps_state() const { return false; }
  // These, as far as it is known, until their slots are reset. Waits for nothing.
  virtual SpoiltSlots spoilt() { return {}; }
};

class Pipeline final : public ForwardPass {
 public:
  // The plan's shards, in its order. The model's file is not read afterwards.
  static Result<std::unique_ptr<Pipeline>> load(const Model& model, const Plan& plan,
                                                std::vector<std::unique_ptr<Shard>> shards,
                                                const LoadProgress& progress);
  ~Pipeline() override;

  const ModelSpec& spec() const override { return spec_; }
  Status forward(const BatchView& batch) override;
  std::span<const float> logits() const { return logits_; }
  std::span<const ChosenToken> chosen() override;
  void reset_slot(int slot) override {
    change({.kind = StateChange::Kind::reset_slot, .to = slot});
  }
  void copy_slot(const StateCopy& slots) {
    change({.kind = StateChange::Kind::copy_slot, .from = slots.from, .to = slots.to});
  }
  void copy_page(int kv_group, const StateCopy& pages) {
    change({.kind = StateChange::Kind::copy_page,
            .kv_group = kv_group,
            .from = pages.from,
            .to = pages.to});
  }

  bool may_begin(const BatchView& batch) override;
  void begin(const BatchView& batch) override;
  Status end() override;

  Status ready() const override;
  Absence absence() const override;
  std::vector<std::string> away() const override;
  // Who has the layers of each of the plan's shards now: its device, one that stands in for it, or
  // nobody (empty) where a worker is away with them. Any thread; the plan that it was loaded by.
  std::vector<std::string> owners(const Plan& plan) const;
  Status restart() override;
  bool restart_due() const override;
  bool keeps_state() const override { return !stopped_ && !failure_; }
  SpoiltSlots spoilt() override;

  // Waits for all batches, also those that nobody asked the logits of. Fails where a shard was lost
  // or a sequence is spoilt.
  Status finish();
  // A worker that does not answer is not waited for long from now on, since the end is near; what
  // answers goes on. Any thread.
  void hurry();
  // Lets a piece that waits for a worker fail soon; any thread. Nothing can be computed afterwards.
  void give_up();
  // Ends the shards' threads after what is under way. May be called again; forward() then fails.
  void stop();

 private:
  Pipeline() = default;
  void link();
  void start_threads(const Plan& plan);
  void find_elsewhere();
  void drive(std::size_t stage, std::vector<int> cpus);
  void change(const StateChange& change) { changes_.push_back(change); }
  void forward_whole(const BatchView& batch);
  void forward_pieces(const BatchView& batch);
  std::span<const float> logits_after(const Piece& piece);
  void take_results(std::span<const float> logits, const BatchView& batch);
  Piece& next_piece();
  struct Begun;
  Begun& begun(std::uint64_t number) { return begun_[number % begun_.size()]; }
  std::uint64_t under_way() const { return n_begun_ - n_ended_; }
  bool at_rest();
  Status end_oldest();
  bool goes_whole(const BatchView& batch) const;
  void prepare_next();
  void fail_whole(Error error, const Shard& shard);
  void send();
  void wait_sent() { wait_until(sent_); }
  void wait_until(std::uint64_t pieces);
  void look_at(const Piece& piece);

  ModelSpec spec_;
  int piece_rows_ = 0;
  bool stopped_ = false;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::span<const float> logits_;
  std::vector<ChosenToken> chosen_;  // room for the most logit rows
  std::size_t n_chosen_ = 0;
  std::vector<StateChange> changes_;  // to come before the next piece
  std::optional<Error> failure_;      // a shard was lost; until restart()
  SpoiltSlots spoilt_;                // by the pieces that were looked at

  // A batch that one thread takes through all shards.
  Piece alone_;  // with one shard; else a piece of the ring serves
  Piece* whole_ = &alone_;
  std::size_t prepared_ = 0;      // shards that know it
  std::function<void()> near_;    // tells the next one
  bool others_elsewhere_ = true;  // the shards after the first

  // Batches begun, by number: those from n_ended_ on are under way.
  struct Begun {
    Piece piece;
    Status status;  // after an error it is not under way in all shards
  };
  std::array<Begun, kMostUnderWay> begun_;
  std::uint64_t n_begun_ = 0, n_ended_ = 0;

  // Several shards only.
  std::unique_ptr<PieceRing> ring_;
  StageProgress source_;                // of the pieces that were filled
  std::uint64_t sent_ = 0;              // pieces given to the stages
  std::uint64_t checked_ = 0;           // of them: known to be done, and looked at
  std::vector<RowRange> ranges_;        // of the batch's pieces
  std::vector<float> gathered_logits_;  // of a batch whose logit rows lie in several pieces
  std::vector<int> first_cpus_;         // of the thread that calls forward()
  ThreadBinding binding_;
  std::vector<std::thread> threads_;
};

// The pool that hands out the plan's pages and slots.
SequencePoolLayout sequence_pool_layout(const Plan& plan);

}  // namespace tessera
