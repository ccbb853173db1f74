#include "pipeline/load_shards.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera {
namespace {

// Loads by a function and computes nothing.
class LoadingShard final : public Shard {
 public:
  using Load = std::function<Status(const LoadProgress&)>;
  explicit LoadingShard(Load load) : load_(std::move(load)) {}

  Status load(const Model&, const LoadProgress& progress) override { return load_(progress); }
  Status prepare(Piece&) override { return {}; }
  Status start(Piece&) override { return {}; }
  Status finish(Piece&, const std::function<void()>&) override { return {}; }
  std::span<const float> logits() override { return {}; }

 private:
  Load load_;
};

class LoadShards : public ::testing::Test {
 protected:
  void add(const char* device, bool remote, LoadingShard::Load load) {
    plan_.shards.push_back({.device = device, .remote = remote, .weight_bytes = 1 << 20});
    shards_.push_back(std::make_unique<LoadingShard>(std::move(load)));
  }
  Status load(const LoadProgress& progress = {}) {
    static const Result<Model> model =
        Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
    EXPECT_TRUE(model.ok());
    return load_shards(*model, plan_, shards_, progress);
  }
  // That `n` have come here; false when the others do not come.
  bool meet(int n) {
    std::unique_lock lock(mutex_);
    ++met_;
    all_.notify_all();
    return all_.wait_for(lock, std::chrono::seconds(20), [&] { return met_ >= n; });
  }
  static Status fails(const char* how) { return Error::make(ErrorCode::exhausted, "{}", how); }

  Plan plan_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::mutex mutex_;
  std::condition_variable all_;
  int met_ = 0;
};

TEST_F(LoadShards, TellsSharesOfLargeOnes) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 37;
  add("cpu", false, [&](const LoadProgress& progress) -> Status {
    for (int step = 1; step <= 4; ++step) progress(step * kBytes / 4, kBytes);
    return {};
  });
  plan_.shards.front().weight_bytes = 3 * kBytes;
  std::vector<std::int64_t> told;
  ASSERT_TRUE(load([&](std::int64_t done, std::int64_t) {
    told.push_back(done / (3 * kBytes / 4));
    return true;
  }));
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 2, 3, 4, 4}));
}

TEST_F(LoadShards, LocalOnesLoadAtTheSameTimeAndRemoteOnesAfterThem) {
  std::atomic<int> loaded{0};
  const auto local = [&](const LoadProgress& progress) -> Status {
    if (!meet(3)) return fails("alone");
    for (int done = 1; done <= 64; ++done)
      if (!progress(done << 8, 64 << 8)) return fails("unwanted");
    ++loaded;
    return {};
  };
  add("cpu:0", false, local);
  add("worker:0", true, [&](const LoadProgress&) -> Status {
    EXPECT_EQ(loaded, 3);
    return {};
  });
  add("cpu:1", false, local);
  add("cpu:2", false, local);
  std::atomic<int> telling{0};
  std::int64_t last = 0;
  const Status status = load([&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(telling++, 0) << "two at a time";
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 4 << 20);
    last = done;
    --telling;
    return true;
  });
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(last, 4 << 20);
}

TEST_F(LoadShards, BreakOffWhereOneFailsOrNobodyWantsThem) {
  const auto endless = [](const LoadProgress& progress) -> Status {
    while (progress(1, 2)) std::this_thread::yield();
    return load_cancelled();
  };
  add("cpu:0", false, endless);
  EXPECT_EQ(load([](std::int64_t, std::int64_t) { return false; }).error().code,
            ErrorCode::cancelled);
  add("cpu:1", false, [](const LoadProgress&) { return fails("no memory"); });
  EXPECT_EQ(load().error().message, "cpu:1: no memory");
}

TEST_F(LoadShards, TellTheFirstErrorOfThePlanAfterAllHaveEnded) {
  std::atomic<int> ended{0};
  add("cpu:0", false, [&](const LoadProgress&) -> Status {
    const bool met = meet(3);
    ++ended;
    return met ? Status() : fails("alone");
  });
  add("cpu:1", false, [&](const LoadProgress&) {
    EXPECT_TRUE(meet(3));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++ended;
    return fails("the first of the plan");
  });
  add("cpu:2", false, [&](const LoadProgress&) {
    EXPECT_TRUE(meet(3));
    ++ended;
    return fails("the first in time");
  });
  add("worker:0", true, [](const LoadProgress&) -> Status {
    ADD_FAILURE() << "waited for in vain";
    return {};
  });
  const Status status = load();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "cpu:1: the first of the plan");
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace tessera
