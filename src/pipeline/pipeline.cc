#include "pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "pipeline/load_shards.h"

namespace tessera {
namespace {

// Where the thread that drives a team runs: it is the team's first member.
std::vector<int> first_of(const std::vector<int>& cpus) {
  return {cpus.begin(), cpus.begin() + (cpus.empty() ? 0 : 1)};
}

}  // namespace

void ForwardPass::begin(const BatchView&) {
  CHECK(false, "a forward pass that begins nothing");
}

Status ForwardPass::end() {
  CHECK(false, "a forward pass that begins nothing");
  return {};
}

Result<std::unique_ptr<Pipeline>> Pipeline::load(const Model& model, const Plan& plan,
                                                 std::vector<std::unique_ptr<Shard>> shards,
                                                 const LoadProgress& progress) {
  CHECK(shards.size() == plan.shards.size());
  auto pipeline = std::unique_ptr<Pipeline>(new Pipeline());
  pipeline->spec_ = model.spec();
  pipeline->piece_rows_ = plan.piece_rows;
  Status loaded = load_shards(model, plan, shards, progress);
  for (std::unique_ptr<Shard>& shard : shards)
    pipeline->stages_.push_back(std::make_unique<Stage>(std::move(shard)));
  if (!loaded) return std::move(loaded).error();
  pipeline->link();
  pipeline->chosen_.resize(static_cast<std::size_t>(plan.shards.back().layout.max_logit_rows));
  pipeline->near_ = [it = pipeline.get()] { it->prepare_next(); };
  if (plan.shards.size() > 1) pipeline->start_threads(plan);
  return pipeline;
}

// Each shard follows the one before, the first one the last.
void Pipeline::link() {
  Stage* before = stages_.back().get();
  for (const std::unique_ptr<Stage>& stage : stages_) {
    stage->shard().follow(before->shard());
    before = stage.get();
  }
  for (std::size_t i = 0; i < begun_.size(); ++i)
    begun_[i].piece.allocate({.max_rows = 0, .n_embd = spec_.n_embd}, unmoved(static_cast<int>(i)));
}

Pipeline::~Pipeline() {
  // First, so that a piece that waits for a worker is not waited for; and all workers end at the
  // same time, and not one after the other.
  give_up();
  // While every device is there that they may wait for.
  while (under_way() > 0) static_cast<void>(end());
  stop();
  // A shard may still be copying the rows of a piece whose logits nobody wanted from the one
  // before.
  while (!stages_.empty()) stages_.pop_back();
}

void Pipeline::start_threads(const Plan& plan) {
  const Piece::Size size{.max_rows = plan.piece_rows, .n_embd = spec_.n_embd};
  ring_ = std::make_unique<PieceRing>(static_cast<int>(stages_.size()), size);
  find_elsewhere();
  first_cpus_ = first_of(plan.shards.front().cpus);
  for (std::size_t i = 1; i < stages_.size(); ++i)
    threads_.emplace_back([this, i, cpus = first_of(plan.shards[i].cpus)] { drive(i, cpus); });
}

void Pipeline::find_elsewhere() {
  others_elsewhere_ = std::all_of(stages_.begin() + 1, stages_.end(),
                                  [](const auto& stage) { return stage->shard().elsewhere(); });
}

void Pipeline::drive(std::size_t stage, std::vector<int> cpus) {
  ThreadBinding binding;
  binding.bind(cpus);
  while (stages_[stage]->run(*ring_, stages_[stage - 1]->progress())) {
  }
}

Status Pipeline::forward(const BatchView& batch) {
  if (stopped_) return Error::make(ErrorCode::unavailable, "the pipeline was stopped");
  if (failure_) return *failure_;
  CHECK(under_way() == 0, "{} batches are under way", under_way());
  logits_ = {};
  n_chosen_ = 0;
  if (ring_ != nullptr) cut_batch(batch, piece_rows_, ranges_);
  goes_whole(batch) ? forward_whole(batch) : forward_pieces(batch);
  if (failure_) {
    if (ring_ != nullptr) wait_sent();
    return *failure_;
  }
  const SpoiltSlots now = spoilt();
  if (const Error* why = now.any_of(batch)) return *why;
  return {};
}

bool Pipeline::may_begin(const BatchView& batch) {
  if (stopped_ || under_way() == begun_.size() || !at_rest() || failure_) return false;
  return std::all_of(stages_.begin(), stages_.end(),
                     [&](const auto& stage) { return stage->shard().may_begin(batch); });
}

// Whether the shards' threads have nothing to do, so that this one may drive their shards.
bool Pipeline::at_rest() {
  if (ring_ == nullptr) return true;
  if (!stages_.back()->progress().is_done(sent_)) return false;
  wait_sent();  // looks at what is done
  return true;
}

void Pipeline::begin(const BatchView& batch) {
  CHECK(may_begin(batch), "{} batches are under way", under_way());
  Begun& now = begun(n_begun_++);
  Piece& piece = now.piece;
  piece.refer(batch);
  piece.chosen_out = std::span(chosen_).first(batch.choices.rows.size());
  piece.changes.swap(changes_);
  changes_.clear();
  spoilt_.apply(piece.changes);
  now.status = {};
  for (const std::unique_ptr<Stage>& stage : stages_)
    if (now.status) now.status = stage->shard().begin(piece);
}

Status Pipeline::end() {
  Status status = end_oldest();
  if (status) return {};
  // What comes behind a batch that failed is of no use, and may wait for the shard that was lost.
  for (const std::unique_ptr<Stage>& stage : stages_) stage->shard().abandon(status.error());
  n_ended_ = n_begun_;
  n_chosen_ = 0;
  failure_ = status.error();
  return status;
}

// In the shards' order, so that who is waited for waits for none that was not.
Status Pipeline::end_oldest() {
  CHECK(under_way() > 0, "no batch is under way");
  Begun& oldest = begun(n_ended_++);
  TESSERA_TRY(std::move(oldest.status));
  logits_ = {};
  n_chosen_ = oldest.piece.chosen_out.size();
  for (const std::unique_ptr<Stage>& stage : stages_) TESSERA_TRY(stage->shard().end(oldest.piece));
  return {};
}

// Where no two shards could work at the same time, and no thread but this one has work to do.
bool Pipeline::goes_whole(const BatchView& batch) const {
  if (ring_ == nullptr) return true;
  return others_elsewhere_ && ranges_.size() == 1 && !batch.logit_rows.empty() &&
         stages_.back()->progress().is_done(sent_);
}

void Pipeline::forward_whole(const BatchView& batch) {
  if (ring_ != nullptr) {
    wait_sent();
    if (failure_) return;  // of a batch before this one
    whole_ = &(*ring_)[sent_];
  }
  binding_.bind(first_cpus_);
  whole_->refer(batch);
  whole_->logits_out = nullptr;
  whole_->chosen_out = std::span(chosen_).first(batch.choices.rows.size());
  whole_->changes.swap(changes_);
  changes_.clear();
  prepared_ = 0;
  prepare_next();
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Shard& shard = stages_[i]->shard();
    if (prepared_ == i) prepare_next();
    if (whole_->failed()) continue;
    Status status = shard.start(*whole_);
    if (status) status = shard.finish(*whole_, near_);
    if (!status) fail_whole(std::move(status).error(), shard);
  }
  look_at(*whole_);
  take_results(logits_after(*whole_), batch);
}

// Every shard is told of a piece, of one that failed too: its changes concern other sequences.
void Pipeline::prepare_next() {
  if (prepared_ == stages_.size()) return;
  Shard& shard = stages_[prepared_++]->shard();
  Status status = shard.prepare(*whole_);
  if (!status) fail_whole(std::move(status).error(), shard);
}

// Of two shards that fail, one that is lost says more.
void Pipeline::fail_whole(Error error, const Shard& shard) {
  if (!whole_->failed() || whole_->keeps_state())
    whole_->fail(std::move(error), shard.keeps_state());
}

void Pipeline::forward_pieces(const BatchView& batch) {
  binding_.bind(first_cpus_);
  // Logits stay with the device where it computes all of them at once.
  const bool gather = batch.choices.empty() && !batch.logit_rows.empty() &&
                      batch.logit_rows.front() < ranges_.back().begin;
  if (gather)
    gathered_logits_.resize(batch.logit_rows.size() * static_cast<std::size_t>(spec_.n_vocab));
  std::size_t gathered = 0, chosen = 0;
  std::uint64_t awaited = 0;  // pieces until the last one with logits
  for (const RowRange rows : ranges_) {
    Piece& piece = next_piece();
    piece.take(batch, rows);
    piece.logits_out = gather ? gathered_logits_.data() + gathered : nullptr;
    gathered += piece.view().logit_rows.size() * static_cast<std::size_t>(spec_.n_vocab);
    CHECK(!gather || gathered <= gathered_logits_.size());
    const std::size_t choices = piece.view().choices.rows.size();
    piece.chosen_out = std::span(chosen_).subspan(chosen, choices);
    chosen += choices;
    if (!piece.view().logit_rows.empty()) awaited = sent_ + 1;
    send();
    if (failure_) return;
  }
  if (awaited == 0) return;
  wait_until(awaited);
  // Not gathered, they are the last piece's, so that no other one has come after it.
  take_results(gather ? std::span<const float>(gathered_logits_).first(gathered)
                      : logits_after((*ring_)[awaited - 1]),
               batch);
}

// Of the piece that the last shard had last.
std::span<const float> Pipeline::logits_after(const Piece& piece) {
  if (piece.failed()) return {};
  return stages_.back()->shard().logits();
}

void Pipeline::take_results(std::span<const float> logits, const BatchView& batch) {
  n_chosen_ = batch.choices.rows.size();
  if (n_chosen_ == 0) logits_ = logits;
}

std::span<const ChosenToken> Pipeline::chosen() {
  return std::span(chosen_).first(n_chosen_);
}

Status Pipeline::finish() {
  CHECK(under_way() == 0, "{} batches are under way", under_way());
  if (ring_ != nullptr) wait_sent();
  if (failure_) return *failure_;
  const SpoiltSlots now = spoilt();
  if (const Error* why = now.any()) return *why;
  return {};
}

// Until the last stage has done with the first `pieces` of those that were sent.
void Pipeline::wait_until(std::uint64_t pieces) {
  if (pieces > 0) stages_.back()->progress().wait_done(pieces);
  for (; checked_ < pieces; ++checked_) look_at((*ring_)[checked_]);
}

// Each piece once, in their order. The first one that lost a shard is the failure.
void Pipeline::look_at(const Piece& piece) {
  spoilt_.apply(piece.changes);
  if (!piece.failed()) return;
  if (piece.keeps_state())
    spoilt_.add(piece.view(), piece.error());
  else if (!failure_)
    failure_ = piece.error();
}

SpoiltSlots Pipeline::spoilt() {
  while (checked_ < sent_ && stages_.back()->progress().is_done(checked_ + 1))
    look_at((*ring_)[checked_++]);
  SpoiltSlots now = spoilt_;
  if (now.empty()) return now;
  // A slot that has a new owner since then is not.
  for (std::uint64_t piece = checked_; piece < sent_; ++piece) now.apply((*ring_)[piece].changes);
  now.apply(changes_);
  return now;
}

// The piece that was filled last, to the stages.
void Pipeline::send() {
  source_.announce();
  source_.advance();
  ++sent_;
  stages_.front()->run(*ring_, source_);
}

// The ring's next slot, when the last stage has done with what was in it.
Piece& Pipeline::next_piece() {
  Piece& piece = (*ring_)[sent_];
  if (sent_ >= ring_->size()) {
    const std::uint64_t before = sent_ - ring_->size();
    stages_.back()->progress().wait_done(before + 1);
    if (checked_ <= before) {
      look_at(piece);
      checked_ = before + 1;
    }
  }
  piece.changes.swap(changes_);
  changes_.clear();
  return piece;
}

Status Pipeline::ready() const {
  for (const auto& stage : stages_) TESSERA_TRY(stage->shard().ready());
  return {};
}

Absence Pipeline::absence() const {
  for (const auto& stage : stages_)
    if (!stage->shard().ready()) return stage->shard().absence();
  return Absence::none;
}

std::vector<std::string> Pipeline::away() const {
  std::vector<std::string> lines;
  // Shards may share a worker of experts.
  for (const auto& stage : stages_)
    for (std::string& line : stage->shard().away())
      if (std::find(lines.begin(), lines.end(), line) == lines.end())
        lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> Pipeline::owners(const Plan& plan) const {
  std::vector<std::string> owners;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const Shard& shard = stages_[i]->shard();
    const ShardPlan& planned = plan.shards[i];
    owners.push_back(shard.stand_in());
    // A shard here has its layers also while it lacks a worker of experts.
    if (owners.back().empty() && (!planned.remote || shard.ready())) owners.back() = planned.device;
  }
  return owners;
}

void Pipeline::hurry() {
  for (const auto& stage : stages_) stage->shard().hurry();
}

void Pipeline::give_up() {
  for (const auto& stage : stages_) stage->shard().give_up();
}

Status Pipeline::restart() {
  CHECK(under_way() == 0, "{} batches are under way", under_way());
  if (stopped_) return Error::make(ErrorCode::unavailable, "the pipeline was stopped");
  if (ring_ != nullptr) wait_sent();
  for (const auto& stage : stages_) TESSERA_TRY(stage->shard().restart());
  find_elsewhere();
  if (failure_) {
    changes_.clear();
    spoilt_ = {};
  }
  failure_.reset();
  return {};
}

bool Pipeline::restart_due() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const auto& stage) { return stage->shard().restart_due(); });
}

void Pipeline::stop() {
  if (std::exchange(stopped_, true)) return;
  binding_.restore();
  if (threads_.empty()) return;
  next_piece().take_stop();
  send();
  for (std::thread& thread : threads_) thread.join();
}

SequencePoolLayout sequence_pool_layout(const Plan& plan) {
  // Every shard has pages for the same positions, so the first one's numbers serve for all.
  const ShardLayout& shard = plan.shards.front().layout;
  SequencePoolLayout layout{.slots = shard.slots, .max_chunk = plan.prefill_chunk};
  for (std::size_t group = 0; group < plan.kv_windows.size(); ++group)
    layout.groups.push_back({.window = plan.kv_windows[group], .pages = shard.kv_pages[group]});
  return layout;
}

}  // namespace tessera
