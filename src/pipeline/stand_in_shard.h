// StandInShard: the layers of a worker, which this process computes itself once the worker was
// restarted too often, and gives back when it is there again.
//
//   auto room = std::make_shared<HostRoom>(plan.shards[0].free_bytes());
//   shard = std::make_unique<StandInShard>(std::move(remote), StandInParts{...}, metrics);
//
// The layers are loaded on a thread of its own as soon as the worker's absence is `failed`; until
// they are, that is `lost`, since something brings the layers back. restart() changes over, either
// way, so that who has no sequence alive loses nothing. What cannot be loaded, for want of room
// too, leaves all as it was.
//
// The metrics must outlive it. Threads: as Shard. A load that has begun is broken off at the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/metrics.h"
#include "pipeline/shard.h"

namespace tessera {

// Bytes that several may want, each at its time. Any thread.
class HostRoom {
 public:
  explicit HostRoom(std::int64_t bytes) : free_(bytes) {}
  bool take(std::int64_t bytes) {
    if (free_.fetch_sub(bytes) >= bytes) return true;
    give(bytes);
    return false;
  }
  void give(std::int64_t bytes) { free_.fetch_add(bytes); }

 private:
  std::atomic<std::int64_t> free_;
};

struct StandInParts {
  std::string worker;  // "worker:0"
  std::string device;  // that takes its layers: "cpu"
  std::string layers;  // "4-7"
  std::int64_t bytes = 0;
  std::shared_ptr<HostRoom> room;
  std::function<Result<std::unique_ptr<Shard>>()> open;  // a shard of the same layout
};

class StandInShard final : public Shard {
 public:
  // What became of the layers is counted: tessera_worker_stand_ins_total.
  StandInShard(std::unique_ptr<Shard> worker, StandInParts parts, MetricsRegistry& metrics);
  ~StandInShard() override;

  // The model must outlive the shard.
  Status load(const Model& model, const LoadProgress& progress) override;
  int depth() const override { return now_->depth(); }
  Status prepare(Piece& piece) override { return now_->prepare(piece); }
  Status start(Piece& piece) override { return now_->start(piece); }
  Status finish(Piece& piece, const std::function<void()>& near) override {
    return now_->finish(piece, near);
  }
  std::span<const float> logits() override { return now_->logits(); }
  bool keeps_state() const override { return now_->keeps_state(); }
  bool elsewhere() const override { return now_->elsewhere(); }
  Status ready() const override;
  Absence absence() const override;
  std::vector<std::string> away() const override;
  // From when they are loaded until restart() finds the worker again.
  std::string stand_in() const override {
    return here() == Here::loaded ? parts_.device : std::string();
  }
  Status restart() override;
  // The worker is there again, and has not its layers.
  bool restart_due() const override { return now_ != worker_.get() && worker_->ready(); }
  void hurry() override { worker_->hurry(); }
  void give_up() override;

 private:
  // Of the layers here.
  enum class Here { none, loading, loaded, impossible };

  void watch(const Model& model);
  void load_here(const Model& model);
  void leave();
  Here here() const;
  bool ended() const;
  void count(const char* reason);

  std::unique_ptr<Shard> worker_;
  StandInParts parts_;
  MetricsRegistry& metrics_;
  Shard* now_;  // who computes

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  Here here_ = Here::none;
  std::unique_ptr<Shard> own_;  // while loaded
  std::thread watcher_;
};

}  // namespace tessera
