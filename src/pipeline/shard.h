// Shard: a contiguous range of a model's layers with the state of all sequences for them. A local
// one computes on a device of this process (LocalShard); a remote one hands the work to another
// process (worker/remote_shard.h). The pipeline knows no difference.
//
//   TESSERA_TRY(shard.prepare(piece));        // the piece is known, its rows may be missing yet
//   TESSERA_TRY(shard.start(piece));          // piece.hidden() holds the rows, where it has any
//   TESSERA_TRY(shard.finish(piece, near));   // piece.hidden() holds what the next shard gets
//
// Pieces pass in order, each through the three calls; up to depth() of them may be started and not
// finished. State changes of a piece come before its rows; a piece that an earlier shard failed at
// gets prepare() alone, for them. finish() calls `near` once if it succeeds, shortly before it
// returns, and at most once if not. A shard with the head leaves no rows: where the piece has
// choices it puts their tokens into piece.chosen_out, else there are logits(), valid until the next
// prepare(); others have none.
//
// Or, where each shard takes from the one before without the host (follow()), and the first one
// from the last, a batch may be begun before the one ahead of it has ended (Device::may_begin), two
// at most. One thread takes it through all shards, both ways; one shard follows itself:
//
//   if (shard.may_begin(piece.view())) status = shard.begin(piece);  // waits for nothing
//   TESSERA_TRY(shard.end(piece));                                   // of the oldest
//
// Between its two calls the piece is the shard's, not what its view shows. A piece whose begin()
// failed does not end. An end() that fails has lost the shard; abandon() loses the others with it,
// whose pieces do not end then. Between begin() and end() come no other pieces.
//
// Errors: unavailable when the shard and the state in it are lost; it fails from then on until
// restart(). A local shard fails for good where its device does. Otherwise it loses nothing: what
// it fails at (experts/dispatcher.h) spoils the piece's own sequences only, and keeps_state() says
// so. It then fails at later pieces that have no other sequences too, uncomputed: the rows before
// theirs are missing, and nobody wants them.
//
// Threads: one at a time drives a shard (start() and finish() too); ready(), absence(), away() and
// stand_in() may be called by any once it is loaded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/cpu/isa.h"
#include "device/device.h"
#include "experts/dispatcher.h"
#include "experts/routing_counts.h"
#include "pipeline/absence.h"
#include "pipeline/piece.h"
#include "pipeline/spoilt_slots.h"
#include "plan/plan.h"
#include "sampling/choose.h"

namespace tessera {

class Shard {
 public:
  virtual ~Shard() = default;

  // Called once, before anything else. The model's file is not read after it returns, but for
  // experts that stay in it (LocalShard).
  virtual Status load(const Model& model, const LoadProgress& progress) = 0;

  // Told once all are loaded, the first shard of the last one: takes the rows from where `before`
  // leaves them, if it can, and not from piece.hidden(); of batches begun the tokens.
  virtual void follow(Shard& before) { (void)before; }
  // The device that has them for `next`, or null.
  virtual const Device* gives_to(Device& next) {
    (void)next;
    return nullptr;
  }

  virtual int depth() const { return 1; }
  virtual Status prepare(Piece& piece) = 0;
  virtual Status start(Piece& piece) = 0;
  virtual Status finish(Piece& piece, const std::function<void()>& near) = 0;
  virtual std::span<const float> logits() = 0;

  virtual bool may_begin(const BatchView& batch);
  virtual Status begin(Piece& piece);
  virtual Status end(Piece& piece);
  virtual void abandon(const Error& why) { (void)why; }

  // Whether the state of the other sequences is as before after an error.
  virtual bool keeps_state() const { return false; }
  // Whether the computing is done by another process, so that who drives the shard only waits.
  virtual bool elsewhere() const { return false; }

  // Whether new work can be taken up. One line that says what is away otherwise.
  virtual Status ready() const { return {}; }
  // Of whatever ready() misses.
  virtual Absence absence() const { return Absence::none; }
  // Waits until that is `failed`; false where it will not be, after give_up() too. Any thread.
  virtual bool await_failed() const { return false; }
  // A line for each worker that is away, needed for that or not, and for each that should have
  // answered.
  virtual std::vector<std::string> away() const { return {}; }
  // The device here that has the layers instead of the one they were planned for; empty: none has.
  virtual std::string stand_in() const { return {}; }
  // Forgets the state of all sequences where that is needed to go on after a loss; otherwise does
  // nothing. No piece may be under way.
  virtual Status restart() { return {}; }
  // Whether that would change who computes, though nothing is lost. Who calls it.
  virtual bool restart_due() const { return false; }
  // From now on a piece waits for a few seconds at most for a worker that does not answer, and then
  // fails; any thread. Workers that answer go on.
  virtual void hurry() {}
  // Begins to end what the shard has elsewhere, so that a piece that waits for it fails soon; any
  // thread. Waits for nothing: the destructor does. Nothing can be computed afterwards.
  virtual void give_up() {}
};

// How a local shard computes the experts that its device does not hold (ShardLayout::experts).
struct LocalExperts {
  ExpertOptions options;
  ExpertMetrics* metrics = nullptr;  // may be null
  RoutingCounts* counts = nullptr;   // counts every layer's routing (counts_step); may be null
  // Executors of the plan's workers for a shard, by number; empty: the host computes for them.
  // Shards that load at the same time call it at the same time.
  std::function<std::vector<std::unique_ptr<ExpertExecutor>>(const ShardLayout&)> workers;
  // Of these workers, as Shard::hurry() and Shard::give_up(); may be empty.
  std::function<void()> hurry_workers;
  std::function<void()> end_workers;
  // The host's threads where the device has none of its own.
  int threads = 1;
  std::vector<PlacedCost> costs = {};  // DispatcherParts::costs
  cpu::Isa isa = cpu::detect_isa();
};

// Whether the `step`-th step's routing is counted, from 0 on. With CPU threads the device has it at
// hand. Any other one computes while the host goes on, which would have to wait in each layer:
// there one step in kCountEvery counts. That is a prime number, so that steps that come in turns,
// as those of prompts of one length and their answers do, are all met. They count once and not so
// many times: experts are placed by how their counts relate, and only the age of a count, which is
// in rows that were counted, becomes a longer one.
inline constexpr std::uint64_t kCountEvery = 17;
constexpr bool counts_step(bool cpu_threads, std::uint64_t step) {
  return cpu_threads || step % kCountEvery == 0;
}

// A shard on a device of this process.
class LocalShard final : public Shard {
 public:
  LocalShard(std::unique_ptr<Device> device, ShardLayout layout, std::vector<int> cpus,
             LocalExperts experts = {})
      : device_(std::move(device)),
        layout_(std::move(layout)),
        cpus_(std::move(cpus)),
        experts_(std::move(experts)) {}

  // With the threads that will use it, so that its memory is near them. A layout with experts reads
  // the model's file as long as the shard lives.
  Status load(const Model& model, const LoadProgress& progress) override;
  // From the next piece on, in the place of LocalExperts::counts.
  void count_in(RoutingCounts* counts) { experts_.counts = counts; }
  void follow(Shard& before) override { from_ = before.gives_to(*device_); }
  const Device* gives_to(Device& next) override {
    gives_ = next.takes_from(*device_);
    return gives_ ? device_.get() : nullptr;
  }
  Status prepare(Piece& piece) override;
  Status start(Piece& piece) override;
  Status finish(Piece& piece, const std::function<void()>& near) override;
  // With every expert of its layers, as the device says.
  bool may_begin(const BatchView& batch) override;
  Status begin(Piece& piece) override;
  Status end(Piece& piece) override;
  void abandon(const Error& why) override;
  std::span<const float> logits() override {
    return layout_.head ? device_->logits() : std::span<const float>();
  }
  // A required worker that fails leaves the device as it was. A device or a file that is lost is so
  // for good.
  bool keeps_state() const override { return !lost_; }
  // Not without the workers of experts that are required.
  Status ready() const override;
  Absence absence() const override { return Absence::lost; }  // of a worker that is required
  std::vector<std::string> away() const override;
  void hurry() override {
    if (experts_.hurry_workers) experts_.hurry_workers();
  }
  void give_up() override {
    if (experts_.end_workers) experts_.end_workers();
  }

 private:
  Status load_experts(const Model& model);
  Status begin_step(Piece& piece);
  Status compute(Piece& piece, const std::function<void()>& near);
  Status layers(LayerRange range);
  Status answer(const std::function<void()>& near);
  Status head(Piece& piece, const std::function<void()>& near);
  Status settled();
  void apply(const StateChange& change);

  std::unique_ptr<Device> device_;
  ShardLayout layout_;
  std::vector<int> cpus_;  // that drive it; empty: any
  LocalExperts experts_;
  std::unique_ptr<Dispatcher> dispatcher_;  // of a layout with experts
  std::optional<TokenChooser> chooser_;     // of one with the head
  const Device* from_ = nullptr;            // that has rows for this one, or tokens for the first
  bool gives_ = false;                      // as much to the next one
  SpoiltSlots spoilt_;                      // by pieces that failed here
  bool lost_ = false;
  std::uint64_t steps_ = 0;  // computed, or begun
  bool counting_ = false;    // the routing of this one
  int asked_ = 0;            // layers of it that ask for experts and have no answer yet
};

// The device that a shard of the plan names.
struct DeviceOptions {
  std::string cpu_isa;  // empty: the widest this processor has
  bool chunked_delta = false;
  std::string gpu_plugins{};  // Placement::gpu_plugins
  double gpu_wait_s = 60.0;   // the longest wait for a step of a GPU
  bool gpu_graphs = true;     // decode steps of a GPU as captured graphs
  bool gpu_chained = true;    // its kernels begin while the one before them ends
  LocalExperts experts{};     // of every local shard; its isa is cpu_isa
};
Result<std::unique_ptr<Device>> open_device(const ShardPlan& shard, const DeviceOptions& options);

// What the plan reckoned with, of the host and then of the workers, by their numbers.
std::vector<PlacedCost> placed_costs(const Plan& plan);

// The shards of a plan, ready to load. `remote` makes those of workers.
using RemoteShards = std::function<Result<std::unique_ptr<Shard>>(const ShardPlan& shard)>;
Result<std::vector<std::unique_ptr<Shard>>> open_shards(const Plan& plan,
                                                        const DeviceOptions& options,
                                                        const RemoteShards& remote = {});

}  // namespace tessera
