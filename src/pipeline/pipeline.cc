#include "pipeline/pipeline.h"

#include <utility>

#include "base/check.h"
#include "device/cpu/cpu_device.h"

namespace tessera {
namespace {

// Where the thread that drives a team runs: it is the team's first member.
std::vector<int> first_of(const std::vector<int>& cpus) {
  return {cpus.begin(), cpus.begin() + (cpus.empty() ? 0 : 1)};
}

// Loads a shard with the threads that will use it, so that its memory is near them.
Status load_near(Device& device, const Model& model, const ShardPlan& shard,
                 const LoadProgress& progress) {
  if (shard.cpus.empty()) return device.load(model, shard.layout, progress);
  Status loaded;
  std::thread([&] {
    ThreadBinding binding;
    binding.bind(first_of(shard.cpus));
    loaded = device.load(model, shard.layout, progress);
  }).join();
  return loaded;
}

}  // namespace

Result<std::unique_ptr<Pipeline>> Pipeline::load(const Model& model, const Plan& plan,
                                                 std::vector<std::unique_ptr<Device>> devices,
                                                 const LoadProgress& progress) {
  CHECK(devices.size() == plan.shards.size());
  auto pipeline = std::unique_ptr<Pipeline>(new Pipeline());
  pipeline->spec_ = model.spec();
  pipeline->piece_rows_ = plan.piece_rows;
  std::int64_t total = 0;
  for (const ShardPlan& shard : plan.shards) total += shard.weight_bytes;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const ShardPlan& shard = plan.shards[i];
    // A shard reports bytes of the file; the whole is told in bytes of the plan.
    const LoadProgress part = [&](std::int64_t done, std::int64_t of) {
      if (progress)
        progress(before + (of > 0 ? shard.weight_bytes * (done >> 8) / ((of >> 8) + 1) : 0), total);
    };
    if (Status loaded = load_near(*devices[i], model, shard, part); !loaded)
      return std::move(loaded.error()).in(shard.device);
    before += shard.weight_bytes;
    if (progress) progress(before, total);
    pipeline->stages_.push_back(std::make_unique<Stage>(std::move(devices[i]), shard.layout));
  }
  if (plan.shards.size() > 1) pipeline->start_threads(plan);
  return pipeline;
}

Pipeline::~Pipeline() {
  stop();
}

void Pipeline::start_threads(const Plan& plan) {
  const ShardLayout& last = plan.shards.back().layout;
  ring_ =
      std::make_unique<PieceRing>(static_cast<int>(stages_.size()), plan.piece_rows, spec_.n_embd);
  gathered_logits_.resize(static_cast<std::size_t>(last.max_logit_rows) *
                          static_cast<std::size_t>(spec_.n_vocab));
  first_cpus_ = first_of(plan.shards.front().cpus);
  for (std::size_t i = 1; i < stages_.size(); ++i)
    threads_.emplace_back([this, i, cpus = first_of(plan.shards[i].cpus)] { drive(i, cpus); });
}

void Pipeline::drive(std::size_t stage, std::vector<int> cpus) {
  ThreadBinding binding;
  binding.bind(cpus);
  for (std::uint64_t number = 0;; ++number)
    if (!stages_[stage]->run(*ring_, number, stages_[stage - 1].get())) return;
}

Status Pipeline::forward(const BatchView& batch) {
  if (stopped_) return Error::make(ErrorCode::unavailable, "the pipeline was stopped");
  Stage& last = *stages_.back();
  if (stages_.size() == 1) {
    last.run_alone(batch);
    logits_ = last.device().logits();
    return {};
  }
  binding_.bind(first_cpus_);
  cut_batch(batch, piece_rows_, ends_);
  // Logits stay with the device where it computes all of them at once.
  const bool gather = !batch.logit_rows.empty() && ends_.size() > 1 &&
                      batch.logit_rows.front() < ends_[ends_.size() - 2];
  std::size_t gathered = 0;
  int begin = 0;
  for (const int end : ends_) {
    send(batch, begin, end, gather, gathered);
    begin = end;
  }
  if (batch.logit_rows.empty()) {
    logits_ = {};
    return {};
  }
  last.wait_done(sent_);
  logits_ =
      gather ? std::span<const float>(gathered_logits_).first(gathered) : last.device().logits();
  return {};
}

std::span<const float> Pipeline::logits() {
  if (ring_ != nullptr && sent_ > 0) stages_.back()->wait_done(sent_);
  return logits_;
}

void Pipeline::send(const BatchView& batch, int begin, int end, bool gather,
                    std::size_t& gathered) {
  Piece& piece = next_piece();
  piece.take(batch, begin, end);
  piece.logits_out = gather ? gathered_logits_.data() + gathered : nullptr;
  gathered += piece.view().logit_rows.size() * static_cast<std::size_t>(spec_.n_vocab);
  CHECK(!gather || gathered <= gathered_logits_.size());
  stages_.front()->run(*ring_, sent_++, nullptr);
}

// The ring's next slot, when the last stage has done with what was in it.
Piece& Pipeline::next_piece() {
  if (sent_ >= ring_->size()) stages_.back()->wait_done(sent_ + 1 - ring_->size());
  Piece& piece = (*ring_)[sent_];
  piece.changes.swap(changes_);
  changes_.clear();
  return piece;
}

// Several shards do it before their next piece, each at its own time.
void Pipeline::change(const StateChange& change) {
  if (stages_.size() == 1) return stages_.front()->apply(change);
  changes_.push_back(change);
}

void Pipeline::stop() {
  if (std::exchange(stopped_, true)) return;
  binding_.restore();
  if (threads_.empty()) return;
  next_piece().take_stop();
  stages_.front()->run(*ring_, sent_++, nullptr);
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

Result<std::vector<std::unique_ptr<Device>>> open_devices(const Plan& plan,
                                                          const DeviceOptions& options) {
  cpu::Isa isa = cpu::detect_isa();
  if (!options.cpu_isa.empty()) {
    TESSERA_ASSIGN(isa, cpu::parse_isa(options.cpu_isa));
  }
  std::vector<std::unique_ptr<Device>> devices;
  for (const ShardPlan& shard : plan.shards) {
    TESSERA_ASSIGN(auto device, make_cpu_device({.threads = shard.threads,
                                                 .cpus = shard.cpus,
                                                 .isa = isa,
                                                 .chunked_delta = options.chunked_delta}));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace tessera
