// A load whose n-th buffer cannot be had: an error that says so, and nothing left behind: the heap
// must not grow with loads that fail.
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/model_runner.h"

namespace {

std::atomic<int> g_left{-1};  // buffers until the one that fails; negative: none does

bool must_fail() {
  return g_left.load() >= 0 && g_left.fetch_sub(1) == 0;
}

}  // namespace

// In place of the C library's, which AlignedBuffer calls.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  void* data = nullptr;
  if (must_fail() || posix_memalign(&data, alignment, size) != 0) return nullptr;
  return data;
}

// Which the C++ library's would call, for objects that are not buffers.
void* operator new(std::size_t size, std::align_val_t alignment) {
  void* data = nullptr;
  if (posix_memalign(&data, static_cast<std::size_t>(alignment), size) != 0) throw std::bad_alloc();
  return data;
}

extern "C" void* mmap(void* at, std::size_t size, int protection, int flags, int fd,
                      off_t offset) noexcept {
  static const auto real = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
  const bool buffer = (flags & MAP_NORESERVE) != 0 && (flags & MAP_ANONYMOUS) != 0;
  if (buffer && must_fail()) return MAP_FAILED;
  return real(at, size, protection, flags, fd, offset);
}

namespace tessera::testing {
namespace {

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

struct Case {
  const char* name;
  const char* family;
  const char* devices;
  std::optional<double> expert_resident;
};

class FailedAllocations : public ::testing::TestWithParam<Case> {};

TEST_P(FailedAllocations, AreErrorsAndLeakNothing) {
  mallopt(M_ARENA_MAX, 1);
  const Result<Model> model = Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/" +
                                          std::string(GetParam().family) + "-bf16.gguf");
  ASSERT_TRUE(model) << model.error().message;
  RunnerOptions options;
  options.expert_resident = GetParam().expert_resident;
  const Result<Placement> placement = parse_placement({.devices = GetParam().devices});
  ASSERT_TRUE(placement) << placement.error().message;
  options.placement = *placement;
  const Result<Plan> plan = runner_plan(*model, options);
  ASSERT_TRUE(plan) << plan.error().message;
  int failures = 0;
  std::int64_t before = 0;
  for (bool loaded = false; !loaded; ++failures) {
    g_left = failures;
    auto shards = open_shards(*plan, options.device);
    if (shards) {
      auto pipeline = Pipeline::load(*model, *plan, *std::move(shards), {});
      g_left = -1;
      loaded = pipeline.ok();
      if (!loaded) {
        EXPECT_EQ(pipeline.error().code, ErrorCode::exhausted);
        EXPECT_NE(pipeline.error().message.find("cannot allocate"), std::string::npos)
            << pipeline.error().message;
      }
    }
    g_left = -1;
    if (failures == 1) before = heap_bytes();
    // What a library keeps for later does not grow with every load.
    if (failures > 1 && !loaded) {
      EXPECT_LT(heap_bytes() - before, 64 << 10) << failures;
    }
  }
  EXPECT_GE(failures, 5);
}

INSTANTIATE_TEST_SUITE_P(, FailedAllocations,
                         ::testing::Values(Case{"one_device", "qwen35moe", "cpu", {}},
                                           Case{"two_devices", "gemma4moe", "cpu:0,cpu:1", {}},
                                           Case{"experts_in_the_file", "qwen35moe", "cpu:0,cpu:1",
                                                25.0}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::testing
