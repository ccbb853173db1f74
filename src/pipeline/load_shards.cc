#include "pipeline/load_shards.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {
namespace {

class Loading {
 public:
  Loading(const Model& model, const Plan& plan, std::span<const std::unique_ptr<Shard>> shards,
          const LoadProgress& progress)
      : model_(model), plan_(plan), shards_(shards), progress_(progress), done_(shards.size()) {
    for (const ShardPlan& shard : plan.shards) total_ += shard.weight_bytes;
  }

  Status load(std::size_t i) {
    const ShardPlan& shard = plan_.shards[i];
    // A shard reports bytes of the file; the whole is told in bytes of the plan.
    const LoadProgress part = [&, i](std::int64_t done, std::int64_t of) {
      tell(i, of > 0 ? shard.weight_bytes * (done >> 8) / ((of >> 8) + 1) : 0);
    };
    if (Status loaded = shards_[i]->load(model_, part); !loaded)
      return std::move(loaded.error()).in(shard.device);
    tell(i, shard.weight_bytes);
    return {};
  }

 private:
  // Threads of one team may report in another order than they counted.
  void tell(std::size_t i, std::int64_t bytes) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    done_[i] = std::max(done_[i], bytes);
    progress_(std::accumulate(done_.begin(), done_.end(), std::int64_t{0}), total_);
  }

  const Model& model_;
  const Plan& plan_;
  std::span<const std::unique_ptr<Shard>> shards_;
  const LoadProgress& progress_;
  std::int64_t total_ = 0;
  std::mutex mutex_;
  std::vector<std::int64_t> done_;  // by shard
};

}  // namespace

Status load_shards(const Model& model, const Plan& plan,
                   std::span<const std::unique_ptr<Shard>> shards, const LoadProgress& progress) {
  Loading loading(model, plan, shards, progress);
  std::vector<std::size_t> local, remote;
  for (std::size_t i = 0; i < shards.size(); ++i)
    (plan.shards[i].remote ? remote : local).push_back(i);

  std::vector<Status> loaded(local.size());
  std::vector<std::thread> threads;
  for (std::size_t n = 1; n < local.size(); ++n)
    threads.emplace_back([&, n] { loaded[n] = loading.load(local[n]); });
  if (!local.empty()) loaded[0] = loading.load(local[0]);
  for (std::thread& thread : threads) thread.join();
  for (Status& status : loaded) TESSERA_TRY(std::move(status));
  for (const std::size_t i : remote) TESSERA_TRY(loading.load(i));
  return {};
}

}  // namespace tessera
