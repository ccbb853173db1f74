// Device: what can hold layers and run them. One per GPU, CPU thread team or (through a worker)
// machine.
//
// A device implements blocks, not tensor operations. The caller (pipeline/) drives one step as
//
//   begin(batch); embed();
//   for each layer: mixer(l); route(l); all_experts(l); dense(l); finish_ffn(l);
//   head(); logits();
//
// Calls enqueue and return: activations live on the device as [rows][n_embd] f32 residual rows, and
// the device keeps the order. Only logits(), choose(), read_hidden(), await_kept(), routed_pairs()
// and next_post() wait for it. What a block computes is given by the layer's LayerSpec
// (model/spec.h); the CPU device is the reference.
//
// A layer may have experts that the device does not hold (ShardLayout::experts). The caller then
// gives experts() the pairs of the resident ones, takes expert_rows() for the others, and adds
// their sums before finish_ffn (experts/dispatcher.h):
//
//   route(l); rows = expert_rows(l); experts(l, resident_pairs); dense(l);
//   add_expert_sums(l, row_ids, host_sums); add_expert_sums(l, row_ids, worker_sums);
//   finish_ffn(l);
//
// or, where the device asks for them while it computes a step that was enqueued as a whole (and
// then the caller answers, with the same calls, before it takes any result):
//
//   for each layer: mixer(l); route(l); all_experts(l); dense(l); finish_ffn(l);
//   head();
//   while ((l = next_post()) >= 0) { routed_pairs(); expert_rows(l); ...; answer_post(l); }
//
// or, where the device streams them, lets the device fetch their weights instead of giving away
// rows: experts(l, resident_pairs); dense(l); stream_experts(l, the_others); finish_ffn(l);
//
// A batch that may_begin() needs no waiting for the one before: the two are under way together,
//
//   begin(a); embed(); ...; head();
//   begin(b); embed(); ...; head();   // its tokens may be those that `a` will have chosen
//   choose(tokens of a); begin(c); ...; head(); choose(tokens of b); ...
//
// also where it passes a chain of devices each of which takes_from() the one before, and the first
// from the last; one device is such a chain. One thread drives all of them then:
//
//   first.begin(a); first.take_tokens(last); first.embed(); ...; first.keep_hidden(i);
//   last.begin(a); last.take_hidden(first, i); ...; last.head();
//   first.begin(b); ...                                         // and the same
//   first.await_kept(i); last.choose(tokens of a);
//
// Ownership: the device owns its weights, KV pages, recurrent slots and scratch, all sized by the
// plan and allocated before the first step; a step allocates nothing, but where its shape is new to
// a GPU (gpu_device.h). Page and slot numbers are the caller's to hand out (state/). One thread
// drives a device. Errors: only loading, allocation and the copy of an expert can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/thread_team.h"
#include "device/batch.h"
#include "device/expert_home.h"
#include "model/model.h"

namespace tessera {

enum class KvType : std::uint8_t { f16, f32, q8_0 };
const char* kv_type_name(KvType type);
Result<KvType> parse_kv_type(std::string_view name);

// One (row, expert, weight) of a MoE layer; slot is its place among the row's chosen experts.
// `fetched`: its device reads the expert where it lies, though it is not resident.
struct RoutedPair {
  std::int32_t row;
  std::int32_t expert;
  std::int32_t slot;
  float weight;
  bool fetched = false;
};

// What a device is asked to hold. Sizes are final: they are the plan's.
struct ShardLayout {
  int first_layer = 0;
  int end_layer = 0;
  bool embedding = true;
  bool head = true;
  // Of a GPU: so many of the embedding table's first rows, a multiple of gpu::kTileRows; the others
  // lie on the host, and it reads them over the link. Absent: it has all of them.
  std::optional<int> table_device_rows;
  int max_rows = 0;        // rows of the largest batch
  int max_logit_rows = 0;  // rows of the largest head call
  int slots = 0;           // recurrent-state slots; also the most sequences of a batch
  int context = 0;         // positions a sequence may have; 0: those of the largest kv_pages
  int kept_pieces = 0;     // whose residual rows stay here until the next shard's device has them
  // How many devices work on rows of a step at the same time, one row behind the other: those that
  // the layers go round in several turns (plan/turns.h).
  int rows_abreast = 1;
  KvType kv_type = KvType::f16;
  bool f32_weights = false;   // every matrix is dequantised when it is loaded
  int file_parts = 0;         // of a CPU device: parts that stay in the file (shard_tensors.h)
  std::vector<int> kv_pages;  // pages of each KV group (kv_groups order)
  // One a layer from first_layer on; empty: every expert is resident.
  std::vector<LayerExperts> experts;

  // The experts of a layer of the shard; nullptr where all are resident or there are none.
  const LayerExperts* layer_experts(int layer) const {
    if (experts.empty()) return nullptr;
    const LayerExperts& found = experts[static_cast<std::size_t>(layer - first_layer)];
    return found.home.empty() ? nullptr : &found;
  }
  // Those of a layer that lacks some, or may: nullptr also where all are listed as resident and
  // there is no place for others.
  const LayerExperts* layer_lacking(int layer) const {
    const LayerExperts* found = layer_experts(layer);
    return found != nullptr && found->all_resident() && found->spare == 0 ? nullptr : found;
  }
  // How many such layers lie before this one.
  int lacking_before(int layer) const {
    int n = 0;
    for (int l = first_layer; l < layer; ++l) n += layer_lacking(l) != nullptr ? 1 : 0;
    return n;
  }
};

// Numbers of two recurrent slots, or of two pages of a KV group.
struct StateCopy {
  int from = 0;
  int to = 0;
};

// Called with bytes loaded so far and in all, by one thread at a time. False: nobody wants them any
// more, and the load fails as `cancelled` soon.
using LoadProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

inline Error load_cancelled() {
  return Error::make(ErrorCode::cancelled, "not loaded to its end");
}

// Experts that crossed the link for a step, and their bytes.
struct StreamedExperts {
  std::int64_t experts = 0;
  std::int64_t bytes = 0;
  std::int64_t ahead = 0;  // of the experts: they came before their layer was computed
};

// Experts of a layer, those of a row in no order; one may stand twice.
struct ForeseenExperts {
  int layer = -1;
  std::span<const std::int32_t> experts;
};

// Device::keep_hidden(): the place of rows that stay where they are, of the i-th batch under way.
constexpr int unmoved(int i) {
  return -1 - i;
}

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;

  // Loads the layers, repacks their weights, allocates state and scratch. Called once. The model's
  // file is not read after it returns, but for experts that come and where parts stay in it: a
  // layout with experts or file_parts must not outlive the model. Its spec is copied.
  virtual Status load(const Model& model, const ShardLayout& layout,
                      const LoadProgress& progress) = 0;

  // --- One step ---
  virtual void begin(const BatchView& batch) = 0;  // the view's spans must outlive the step
  // Whether all from begin() to head(), or keep_hidden(), waits for nothing and the batch's tokens
  // are certain to be chosen by a device of this kind, so that it may be begun while one other such
  // batch is under way, before choose() of that. Nothing may come between but changes of state. The
  // view's spans need not outlive head(), or keep_hidden(), then.
  virtual bool may_begin(const BatchView&) { return false; }
  // Of such a batch, before embed(): that comes behind the choices of the batch begun before, which
  // were made by `last` (takes_from()).
  virtual void take_tokens(const Device& last) { (void)last; }
  virtual void embed() = 0;
  virtual void mixer(int layer) = 0;
  virtual void route(int layer) = 0;
  // Computes the given pairs of the last route() for the layer's MoE sum. Every pair must be given
  // exactly once before finish_ffn, by one call or several; the weights are those of the routing.
  virtual void experts(int layer, std::span<const RoutedPair> pairs) = 0;
  virtual void all_experts(int layer) = 0;  // every pair, without the host having seen them
  virtual void dense(int layer) = 0;
  // What the experts of the last route() read: [rows][n_embd], normed, on the host.
  virtual std::span<const float> expert_rows(int layer);
  // Sums of pairs that were computed elsewhere (experts/executor.h): sums[i], with weights, belongs
  // to row rows[i]; rows rise. They join the resident pairs' sum in finish_ffn. On a CPU device
  // that is rounded to f32 once, so the result does not show which pairs were computed where.
  virtual void add_expert_sums(int layer, std::span<const std::int32_t> rows,
                               std::span<const double> sums);
  virtual void finish_ffn(int layer) = 0;
  virtual void head() = 0;

  // [logit_rows][n_vocab] of the last head(), until the next begin().
  virtual std::span<const float> logits() = 0;
  // The tokens of the batch's choices, instead of logits(); of the oldest where two are under way.
  // False: some are kNotChosen, which the caller chooses from the logits
  // (TokenChooser::choose_left). Who chooses depends on a row alone.
  virtual bool choose(std::span<ChosenToken> chosen);
  // The routing of the last route(): row-major, slot ascending.
  virtual std::span<const RoutedPair> routed_pairs() = 0;
  // Why the device can compute no more, once that is so (a GPU that failed or does not answer, a
  // file that could not be read); what it returns from then on is zeros, and kNoToken. Settled for
  // a step when its logits(), choose(), read_hidden() or await_kept() is.
  virtual Status fault() { return {}; }
  // Another device of the chain is lost, for which what is under way here may wait for good: this
  // one is lost with it, and nobody waits for it.
  virtual void abandon(const Error& why) { (void)why; }
  // Residual rows across a shard boundary, [rows][n_embd].
  virtual void read_hidden(std::span<float> out) = 0;
  virtual void write_hidden(std::span<const float> rows) = 0;
  // The same without the host, between devices of one kind: whether this one can take from `other`,
  // once both are loaded, what comes of a batch there: rows, for which it has kept_pieces, or with
  // the head tokens (take_tokens()). It may be `other` itself. What keep_hidden() keeps in a place
  // stays until the next call with the same place; await_kept() waits for it as read_hidden() does.
  // take_hidden() comes behind it, awaited or not, and may be called by another thread than
  // `other`'s. In unmoved() places rows are not copied: of batches that go ahead, the next of which
  // begins behind the tokens of this one, and so when all have taken its rows.
  virtual bool takes_from(Device& other) {
    (void)other;
    return false;
  }
  virtual void keep_hidden(int place) { (void)place; }
  virtual void await_kept(int place) { (void)place; }
  virtual void take_hidden(const Device& other, int place) {
    (void)other;
    (void)place;
  }

  // --- State ---
  virtual void reset_slot(int slot) = 0;
  virtual void copy_slot(const StateCopy& slots) = 0;
  virtual void copy_page(int kv_group, const StateCopy& pages) = 0;

  // --- Experts asked for while a step runs ---
  // Whether that is how this layer's experts away are computed in the step begun. If so, its
  // routing is not asked for before next_post() has named it.
  virtual bool posts_experts(int) const { return false; }
  // Waits for the next layer that has asked; -1 when all are answered. Until answer_post(),
  // routed_pairs(), expert_rows() and add_expert_sums() are of that layer.
  virtual int next_post() { return -1; }
  virtual void answer_post(int) {}
  // Nothing more of this step will be answered; what it computes then is not to be used.
  virtual void drop_posts() {}
  // From then on it foresees what it will ask for, if it can; of that it may read first what it
  // reads itself (divide_reads()).
  virtual bool foresee_experts() { return false; }
  // After answer_post(): what the next layer that asks will probably ask for, as its router finds
  // for rows that lack what all in between adds. Empty: nothing is known. A hint: who
  // computes them need not know. Until next_post().
  virtual ForeseenExperts foreseen() { return {}; }
  // Whether the device did not give up to wait for an answer, where that had taken too long;
  // settled as fault() is. The step's results are not to be used then; nothing else is lost.
  virtual Status posts_answered() { return {}; }

  // The CPU threads that it computes with, which others may use from the thread that drives it;
  // null for a device that has none.
  virtual std::shared_ptr<ThreadTeam> team() { return nullptr; }

  // --- Experts that cross the device's link for a step ---
  // By number, 1 for those of which it takes pairs: it has them packed in memory from which it
  // copies at its link's speed (LayerExperts::streamed). Empty: of none. A step changes nothing.
  virtual std::span<const std::uint8_t> streamable(int layer);
  // Of a step. With fewer rows it takes no more than it was told by divide_reads().
  virtual int least_streamed_rows() const { return 0; }
  // Microseconds that so many of them take to cross.
  virtual double stream_us(int layer, int experts);
  // As experts(), after that and dense(), once a layer: each pair's expert is copied here, once,
  // and forgotten. Such a pair's output has the bits that it has where the expert is resident. Of a
  // layer that posts (next_post()) the pairs that it reads anyhow are counted, once a row.
  virtual void stream_experts(int layer, std::span<const RoutedPair> pairs);
  virtual StreamedExperts streamed() const { return {}; }  // since it was loaded
  // In steps of fewer rows than least_streamed_rows(): of n experts that a row lacks and of which
  // it takes pairs it reads reads[n] itself, where they lie, while the others are computed
  // elsewhere (RoutedPair::fetched). None until it is told, which it is before the first step.
  virtual void divide_reads(std::span<const std::uint8_t> reads) { (void)reads; }

  // --- Experts that come and go, between steps ---
  // Begins to copy the expert into its place. Steps may go on meanwhile.
  virtual void begin_replace_expert(const ExpertMove& move);
  // Whether the expert is resident from now on. An error ends all moves: the place is spare.
  virtual Result<bool> expert_replaced();
};

}  // namespace tessera
