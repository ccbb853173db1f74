#include "pipeline/load_shards.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/within_memory.h"

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
    const std::string& device = plan_.shards[i].device;
    Status loaded = within_memory([&] { return load_one(i); }, device.c_str());
    if (!loaded) wanted_ = false;
    return loaded;
  }

 private:
  Status load_one(std::size_t i) {
    const ShardPlan& shard = plan_.shards[i];
    // A shard reports bytes of the file; the whole is told in bytes of the plan.
    const LoadProgress part = [&, i](std::int64_t done, std::int64_t of) {
      const double share = of > 0 ? static_cast<double>(done) / static_cast<double>(of) : 0.0;
      return tell(i, std::llround(share * static_cast<double>(shard.weight_bytes)));
    };
    if (Status loaded = shards_[i]->load(model_, part); !loaded)
      return std::move(loaded.error()).in(shard.device);
    tell(i, shard.weight_bytes);
    return {};
  }

  // Threads of one team may report in another order than they counted.
  bool tell(std::size_t i, std::int64_t bytes) {
    if (!progress_) return wanted_;
    const std::lock_guard lock(mutex_);
    done_[i] = std::max(done_[i], bytes);
    if (!progress_(std::accumulate(done_.begin(), done_.end(), std::int64_t{0}), total_))
      wanted_ = false;
    return wanted_;
  }

  const Model& model_;
  const Plan& plan_;
  std::span<const std::unique_ptr<Shard>> shards_;
  const LoadProgress& progress_;
  std::int64_t total_ = 0;
  std::atomic<bool> wanted_{true};  // false once a shard failed
  std::mutex mutex_;
  std::vector<std::int64_t> done_;  // by shard
};

// Of shards that were not loaded to their end since another failed nobody wants to hear.
Status first_error(std::span<const Status> loaded) {
  const auto is_cause = [](const Status& status) {
    return !status && status.error().code != ErrorCode::cancelled;
  };
  auto found = std::find_if(loaded.begin(), loaded.end(), is_cause);
  if (found == loaded.end())
    found = std::find_if(loaded.begin(), loaded.end(), [](const Status& one) { return !one; });
  return found == loaded.end() ? Status() : *found;
}

}  // namespace

Status load_shards(const Model& model, const Plan& plan,
                   std::span<const std::unique_ptr<Shard>> shards, const LoadProgress& progress) {
  Loading loading(model, plan, shards, progress);
  std::vector<std::size_t> local, remote;
  for (std::size_t i = 0; i < shards.size(); ++i)
    (plan.shards[i].remote ? remote : local).push_back(i);

  std::vector<Status> loaded(local.size());
  {
    std::vector<std::jthread> threads;
    const auto begin = [&]() -> Status {
      for (std::size_t n = 1; n < local.size(); ++n)
        threads.emplace_back([&, n] { loaded[n] = loading.load(local[n]); });
      return {};
    };
    TESSERA_TRY(within_memory(begin, "this process"));
    if (!local.empty()) loaded[0] = loading.load(local[0]);
  }
  TESSERA_TRY(first_error(loaded));
  for (const std::size_t i : remote) TESSERA_TRY(loading.load(i));
  return {};
}

}  // namespace tessera
