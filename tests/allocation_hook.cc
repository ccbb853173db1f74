#include "tests/allocation_hook.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> g_allocations{0};
std::atomic<int> g_left{-1};  // until the one that fails; negative: none does
thread_local bool t_spared = false;

// Counts one, and says whether it is to fail.
bool must_fail() {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return !t_spared && g_left.load() >= 0 && g_left.fetch_sub(1) == 0;
}

// Null where there is none.
void* allocated(std::size_t size, std::size_t alignment) {
  void* data = nullptr;
  return !must_fail() && ::posix_memalign(&data, alignment, size) == 0 ? data : nullptr;
}

void* made(std::size_t size, std::size_t alignment) {
  if (void* data = allocated(size, alignment)) return data;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) {
  return made(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return made(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}

// AlignedBuffer's.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return allocated(size, alignment);
}

// Of rings.
extern "C" void* mmap(void* at, std::size_t size, int protection, int flags, int fd,
                      off_t offset) noexcept {
  static const auto real = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
  if ((flags & MAP_SHARED) != 0 && must_fail()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(at, size, protection, flags, fd, offset);
}

namespace tessera::testing {

std::int64_t allocations() {
  return g_allocations;
}

void fail_allocation(int n) {
  g_left = n;
}

bool stop_failing() {
  return g_left.exchange(-1) < 0;
}

void spare_this_thread(bool spared) {
  t_spared = spared;
}

}  // namespace tessera::testing
