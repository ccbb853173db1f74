#include "base/by_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <thread>

namespace tessera {
namespace {

TEST(ByThreads, EveryThreadDoesTheWork) {
  std::atomic<int> calls{0};
  const Status done = by_threads(4, [&](const std::atomic<bool>& failed) -> Status {
    EXPECT_FALSE(failed);
    ++calls;
    return {};
  });
  EXPECT_TRUE(done);
  EXPECT_EQ(calls, 4);
}

TEST(ByThreads, TheFirstErrorEndsTheOthers) {
  std::atomic<int> calls{0};
  const Status done = by_threads(4, [&](const std::atomic<bool>& failed) -> Status {
    if (calls++ == 0) return Error::make(ErrorCode::io, "no file");
    while (!failed) std::this_thread::yield();
    return Error::make(ErrorCode::internal, "a later one");
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::io);
  EXPECT_EQ(done.error().message, "no file");
}

TEST(ByThreads, AThreadWithoutMemoryIsAnError) {
  std::atomic<int> calls{0};
  const Status done = by_threads(4, [&](const std::atomic<bool>&) -> Status {
    if (calls++ == 2) throw std::bad_alloc();
    return {};
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::exhausted);
}

// The address space has room for the stacks of few threads while it lives.
class FewThreads {
 public:
  FewThreads() {
    pthread_attr_t stacks;
    EXPECT_EQ(pthread_attr_init(&stacks), 0);
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&stacks, kStack), 0);
    EXPECT_EQ(pthread_setattr_default_np(&stacks), 0);
    pthread_attr_destroy(&stacks);
    EXPECT_EQ(getrlimit(RLIMIT_AS, &space_), 0);
    rlimit little = space_;
    little.rlim_cur = used() + 5 * kStack / 2;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  }
  ~FewThreads() {
    setrlimit(RLIMIT_AS, &space_);
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  static constexpr std::size_t kStack = std::size_t{1} << 30;
  static std::size_t used() {
    std::size_t pages = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    EXPECT_EQ(std::fscanf(file, "%zu", &pages), 1);
    std::fclose(file);
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }

  pthread_attr_t before_;
  rlimit space_{};
};

TEST(ByThreads, ASystemWithoutThreadsIsAnError) {
  const FewThreads few;
  std::atomic<int> calls{0};
  const Status done = by_threads(8, [&](const std::atomic<bool>& failed) -> Status {
    ++calls;
    while (!failed) std::this_thread::yield();
    return {};
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::exhausted);
  EXPECT_NE(done.error().message.find("cannot start 7 threads"), std::string::npos)
      << done.error().message;
  EXPECT_GT(calls, 0) << "none was started, so none had to end";
  EXPECT_LT(calls, 7);
}

}  // namespace
}  // namespace tessera
