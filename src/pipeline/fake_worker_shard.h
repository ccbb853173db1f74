// FakeWorkerShard: a worker of layers for tests, which is there, has failed, or is ended, as the
// test says. It computes nothing; its only logit is `mark`.
#pragma once

#include <condition_variable>
#include <mutex>

#include "pipeline/shard.h"

namespace tessera {

class FakeWorkerShard final : public Shard {
 public:
  Status load(const Model&, const LoadProgress&) override { return {}; }
  Status prepare(Piece&) override { return {}; }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>&) override { return {}; }
  std::span<const float> logits() override { return {&mark, 1}; }
  bool elsewhere() const override { return true; }
  Status ready() const override {
    const std::lock_guard lock(mutex_);
    if (failed_) return Error::make(ErrorCode::unavailable, "worker:0 is away (failed)");
    return {};
  }
  Absence absence() const override { return ready() ? Absence::none : Absence::failed; }
  std::vector<std::string> away() const override {
    if (const Status now = ready(); !now) return {now.error().message};
    return {};
  }
  Status restart() override { return ready(); }
  bool await_failed() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || failed_; });
    return !ended_;
  }
  void give_up() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void set_failed(bool failed) {
    const std::lock_guard lock(mutex_);
    failed_ = failed;
    changed_.notify_all();
  }

  float mark = 1;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool failed_ = false;
  bool ended_ = false;
};

}  // namespace tessera
