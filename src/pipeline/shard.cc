#include "pipeline/shard.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/within_memory.h"
#include "device/cpu/cpu_device.h"
#include "device/gpu/plugin.h"
#include "experts/host_executor.h"
#include "experts/prefault.h"
#include "pipeline/thread_binding.h"

namespace tessera {

// A shard that may not begin is not told to.
bool Shard::may_begin(const BatchView&) {
  return false;
}

Status Shard::begin(Piece&) {
  CHECK(false, "a shard that begins nothing");
  return {};
}

Status Shard::end(Piece&) {
  CHECK(false, "a shard that begins nothing");
  return {};
}

Status LocalShard::load(const Model& model, const LoadProgress& progress) {
  if (layout_.head) chooser_.emplace(model.spec());
  Status loaded;
  const auto load = [&] { return device_->load(model, layout_, progress); };
  if (cpus_.empty()) {
    loaded = load();
  } else {
    std::thread([&] {
      ThreadBinding binding;
      binding.bind(std::span(cpus_).first(1));
      loaded = within_memory(load, "this process");
    }).join();
  }
  if (loaded && !layout_.experts.empty()) return load_experts(model);
  return loaded;
}

Status LocalShard::load_experts(const Model& model) {
  TESSERA_TRY(prefault_experts(model, layout_, experts_.options.prefault));
  DispatcherParts parts{
      .options = experts_.options, .metrics = experts_.metrics, .costs = experts_.costs};
  for (int l = layout_.first_layer; l < layout_.end_layer; ++l)
    parts.expert_bytes.push_back(expert_file_bytes(model, l));
  TESSERA_ASSIGN(parts.host, make_host_executor(model, {.first_layer = layout_.first_layer,
                                                        .end_layer = layout_.end_layer,
                                                        .max_rows = host_job_rows(layout_),
                                                        .f32_weights = layout_.f32_weights,
                                                        .team = device_->team(),
                                                        .threads = experts_.threads,
                                                        .isa = experts_.isa}));
  if (experts_.workers) parts.workers = experts_.workers(layout_);
  dispatcher_ = std::make_unique<Dispatcher>(model.spec(), layout_, std::move(parts));
  TESSERA_ASSIGN(const std::optional<ExpertOfLayer> measured, dispatcher_->measure_host());
  if (measured && experts_.options.prefault == ExpertPrefault::off)
    release_expert(model, *measured);
  return dispatcher_->prepare(*device_);
}

Status LocalShard::ready() const {
  if (dispatcher_ == nullptr || !experts_.options.required) return {};
  const std::vector<std::string> lines = dispatcher_->away();
  if (lines.empty()) return {};
  return Error::make(ErrorCode::unavailable, "{}", lines.front());
}

std::vector<std::string> LocalShard::away() const {
  if (dispatcher_ == nullptr) return {};
  std::vector<std::string> lines = dispatcher_->away();
  for (std::string& line : dispatcher_->unanswered()) lines.push_back(std::move(line));
  return lines;
}

Status LocalShard::prepare(Piece& piece) {
  TESSERA_TRY(begin_step(piece));
  if (layout_.embedding) device_->embed();
  return {};
}

Status LocalShard::begin_step(Piece& piece) {
  for (const StateChange& change : piece.changes) apply(change);
  spoilt_.apply(piece.changes);
  if (dispatcher_ != nullptr)
    if (Status moved = dispatcher_->between_steps(*device_); !moved) {
      lost_ = true;  // the device: later pieces would fail as well
      return moved;
    }
  device_->begin(piece.view());
  return {};
}

Status LocalShard::start(Piece& piece) {
  if (const Error* why = spoilt_.all_of(piece.view())) return *why;
  if (layout_.embedding) return {};
  if (from_ != nullptr)
    device_->take_hidden(*from_, piece.place());
  else
    device_->write_hidden(piece.hidden());
  return {};
}

Status LocalShard::finish(Piece& piece, const std::function<void()>& near) {
  Status status = compute(piece, near);
  if (status) return status;
  lost_ |= status.error().code != ErrorCode::unavailable || !device_->fault();
  spoilt_.add(piece.view(), status.error());
  return status;
}

Status LocalShard::compute(Piece& piece, const std::function<void()>& near) {
  counting_ = experts_.counts != nullptr && counts_step(device_->team() != nullptr, steps_++);
  asked_ = 0;
  if (layout_.head) {
    TESSERA_TRY(layers({layout_.first_layer, layout_.end_layer}));
    if (asked_ == 0) near();
    return head(piece, near);
  }
  TESSERA_TRY(layers({layout_.first_layer, layout_.end_layer - 1}));
  bool told = asked_ == 0;
  if (told) near();
  TESSERA_TRY(layers({layout_.end_layer - 1, layout_.end_layer}));
  if (!told && asked_ == 0) {
    near();
    told = true;
  }
  TESSERA_TRY(answer(told ? std::function<void()>() : near));
  if (gives_) {
    device_->keep_hidden(piece.place());
    device_->await_kept(piece.place());
  } else {
    device_->read_hidden(piece.hidden());
  }
  return settled();
}

Status LocalShard::head(Piece& piece, const std::function<void()>& near) {
  const BatchView& view = piece.view();
  device_->head();
  TESSERA_TRY(answer(near));
  if (view.logit_rows.empty()) return settled();
  const bool choices = !view.choices.empty();
  if (choices && device_->choose(piece.chosen_out)) return settled();
  // A device that computes on its own tells by its results how a step went.
  const std::span<const float> logits = device_->logits();
  TESSERA_TRY(settled());
  if (choices) chooser_->choose_left(logits, view.choices, piece.chosen_out);
  return {};
}

Status LocalShard::settled() {
  TESSERA_TRY(device_->fault());
  return device_->posts_answered();
}

bool LocalShard::may_begin(const BatchView& batch) {
  return from_ != nullptr && gives_ && dispatcher_ == nullptr && experts_.counts == nullptr &&
         device_->may_begin(batch);
}

Status LocalShard::begin(Piece& piece) {
  counting_ = false;
  TESSERA_TRY(begin_step(piece));
  if (layout_.embedding) {
    device_->take_tokens(*from_);
    device_->embed();
  }
  TESSERA_TRY(start(piece));
  TESSERA_TRY(layers({layout_.first_layer, layout_.end_layer}));
  if (layout_.head)
    device_->head();
  else
    device_->keep_hidden(piece.place());
  return {};
}

Status LocalShard::end(Piece& piece) {
  if (layout_.head)
    CHECK(device_->choose(piece.chosen_out), "{} has left tokens of a batch begun",
          device_->name());
  else
    device_->await_kept(piece.place());
  Status status = device_->fault();
  lost_ |= !status;
  return status;
}

void LocalShard::abandon(const Error& why) {
  device_->abandon(why);
  lost_ = true;
}

// Of a step that is counted the routing of a layer that asks for nothing is at hand only when the
// layers before it are done.
Status LocalShard::layers(LayerRange range) {
  for (int layer = range.begin; layer < range.end; ++layer) {
    const bool posts = device_->posts_experts(layer);
    if (counting_ && !posts) TESSERA_TRY(answer({}));
    device_->mixer(layer);
    device_->route(layer);
    if (counting_ && !posts) experts_.counts->add(layer, device_->routed_pairs());
    if (dispatcher_ != nullptr && !posts) {
      TESSERA_TRY(dispatcher_->compute(*device_, layer));
    } else {
      device_->all_experts(layer);
      device_->dense(layer);
    }
    device_->finish_ffn(layer);
    asked_ += posts ? 1 : 0;
  }
  return {};
}

// Of the experts that the device asks for while it computes. `near` at the last of them, if any.
Status LocalShard::answer(const std::function<void()>& near) {
  for (int layer = device_->next_post(); layer >= 0; layer = device_->next_post()) {
    if (--asked_ == 0 && near) near();
    if (counting_) experts_.counts->add(layer, device_->routed_pairs());
    if (Status computed = dispatcher_->compute(*device_, layer); !computed) {
      device_->drop_posts();
      return computed;
    }
    device_->answer_post(layer);
    dispatcher_->foresee(*device_);
  }
  return {};
}

void LocalShard::apply(const StateChange& change) {
  switch (change.kind) {
    case StateChange::Kind::reset_slot:
      return device_->reset_slot(change.to);
    case StateChange::Kind::copy_slot:
      return device_->copy_slot({.from = change.from, .to = change.to});
    case StateChange::Kind::copy_page:
      return device_->copy_page(change.kv_group, {.from = change.from, .to = change.to});
  }
}

namespace {

Result<cpu::Isa> isa_of(const DeviceOptions& options) {
  if (options.cpu_isa.empty()) return cpu::detect_isa();
  return cpu::parse_isa(options.cpu_isa);
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(const ShardPlan& shard, const DeviceOptions& options) {
  if (shard.kind != DeviceKind::cpu)
    return make_gpu_device(device_kind_name(shard.kind),
                           {.index = shard.number,
                            .load_threads = shard.threads,
                            .wait_seconds = options.gpu_wait_s,
                            .graphs = options.gpu_graphs,
                            .chained = options.gpu_chained},
                           options.gpu_plugins);
  TESSERA_ASSIGN(const cpu::Isa isa, isa_of(options));
  return make_cpu_device({.threads = shard.threads,
                          .cpus = shard.cpus,
                          .isa = isa,
                          .chunked_delta = options.chunked_delta});
}

std::vector<PlacedCost> placed_costs(const Plan& plan) {
  std::vector<PlacedCost> costs(1);
  for (const auto& [executor, own] : plan.expert_costs) {
    const PlacedCost cost{.call_us = 1e6 * own.call_s, .bytes_per_us = 1e-6 * own.bytes_per_s};
    if (executor == kHostExecutor)
      costs.front() = cost;
    else
      costs.push_back(cost);
  }
  return costs;
}

Result<std::vector<std::unique_ptr<Shard>>> open_shards(const Plan& plan,
                                                        const DeviceOptions& options,
                                                        const RemoteShards& remote) {
  std::vector<std::unique_ptr<Shard>> shards(plan.shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const ShardPlan& shard = plan.shards[i];
    if (shard.remote) {
      if (!remote)
        return Error::make(ErrorCode::unsupported, "{}: workers cannot be used here", shard.device);
      TESSERA_ASSIGN(shards[i], remote(shard));
    } else {
      TESSERA_ASSIGN(auto device, open_device(shard, options));
      LocalExperts experts = options.experts;
      TESSERA_ASSIGN(experts.isa, isa_of(options));
      experts.costs = placed_costs(plan);
      experts.threads = shard.threads;
      shards[i] = std::make_unique<LocalShard>(std::move(device), shard.layout, shard.cpus,
                                               std::move(experts));
    }
  }
  return shards;
}

}  // namespace tessera
