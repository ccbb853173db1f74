#include "pipeline/stand_in_shard.h"

#include <utility>

#include "base/log.h"
#include "base/within_memory.h"

namespace tessera {

StandInShard::StandInShard(std::unique_ptr<Shard> worker, StandInParts parts,
                           MetricsRegistry& metrics)
    : worker_(std::move(worker)),
      parts_(std::move(parts)),
      metrics_(metrics),
      now_(worker_.get()) {}

StandInShard::~StandInShard() {
  give_up();
  if (watcher_.joinable()) watcher_.join();
}

Status StandInShard::load(const Model& model, const LoadProgress& progress) {
  TESSERA_TRY(worker_->load(model, progress));
  watcher_ = std::thread([this, &model] { watch(model); });
  return {};
}

void StandInShard::watch(const Model& model) {
  while (worker_->await_failed()) {
    load_here(model);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ || here_ == Here::none; });
    if (ended_) return;
  }
}

void StandInShard::give_up() {
  worker_->give_up();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

StandInShard::Here StandInShard::here() const {
  const std::lock_guard lock(mutex_);
  return here_;
}

bool StandInShard::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void StandInShard::count(const char* reason) {
  metrics_
      .counter("tessera_worker_stand_ins_total",
               "Layers of a worker that was restarted too often, and who computes them.",
               {{"worker", parts_.worker}, {"reason", reason}})
      .add();
}

void StandInShard::load_here(const Model& model) {
  const bool room = parts_.room->take(parts_.bytes);
  {
    const std::lock_guard lock(mutex_);
    here_ = Here::loading;  // also without room, until that is counted
  }
  const auto load = [&]() -> Result<std::unique_ptr<Shard>> {
    if (!room) return Error::make(ErrorCode::exhausted, "other layers have the room that was free");
    log_info("{} does not come back: {} loads its layers {}", parts_.worker, parts_.device,
             parts_.layers);
    TESSERA_ASSIGN(std::unique_ptr<Shard> shard, parts_.open());
    const LoadProgress wanted = [this](std::int64_t, std::int64_t) { return !ended(); };
    if (Status loaded = shard->load(model, wanted); !loaded) return std::move(loaded).error();
    return shard;
  };
  Result<std::unique_ptr<Shard>> shard = within_memory(load, parts_.device.c_str());
  if (shard) {
    log_info("{} computes layers {} in place of {}", parts_.device, parts_.layers, parts_.worker);
    count("loaded");
  } else if (!ended()) {
    log_error("{} cannot compute layers {} in place of {}: {}", parts_.device, parts_.layers,
              parts_.worker, shard.error().message);
    count(room ? "failed" : "no_room");
  }
  const std::lock_guard lock(mutex_);
  if (!shard && room) parts_.room->give(parts_.bytes);
  here_ = shard ? Here::loaded : Here::impossible;
  if (shard) own_ = *std::move(shard);
}

Status StandInShard::ready() const {
  Status there = worker_->ready();
  if (there) return there;
  const std::lock_guard lock(mutex_);
  return here_ == Here::loaded ? own_->ready() : there;
}

// Called where ready() fails. Who has failed a moment ago is about to be stood in for.
Absence StandInShard::absence() const {
  const Absence there = worker_->absence();
  return there == Absence::failed && here() != Here::impossible ? Absence::lost : there;
}

std::vector<std::string> StandInShard::away() const {
  std::vector<std::string> lines = worker_->away();
  if (lines.empty() || worker_->ready()) return lines;
  switch (here()) {
    case Here::none:
    case Here::impossible:
      break;
    case Here::loading:
      lines.back() += fmt::format("; {} loads its layers", parts_.device);
      break;
    case Here::loaded:
      lines.back() += fmt::format("; {} computes its layers", parts_.device);
      break;
  }
  return lines;
}

Status StandInShard::restart() {
  if (worker_->ready()) {
    leave();
    return worker_->restart();
  }
  const std::lock_guard lock(mutex_);
  if (here_ != Here::loaded) return worker_->restart();
  now_ = own_.get();
  return own_->restart();
}

// The worker is there again.
void StandInShard::leave() {
  if (now_ != worker_.get()) {
    log_info("{} computes layers {} again", parts_.worker, parts_.layers);
    count("given_back");
  }
  now_ = worker_.get();
  const std::lock_guard lock(mutex_);
  if (here_ == Here::loading) return;  // it is left next time
  own_.reset();
  if (std::exchange(here_, Here::none) == Here::loaded) parts_.room->give(parts_.bytes);
  changed_.notify_all();
}

}  // namespace tessera
