// Blocks of a kernel, one after the other: a fiber for each thread.
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"
#include "tests/gpu/emulator/kernel_run.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {

namespace context = boost::context;

constexpr int kWarp = 32;
constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kMostGiven = 16;  // bytes of a lane
constexpr int kKept = 4;                // exchanges

enum class State { ready, at_warp, at_block, done };

// A fiber that runs one thread of a block after another, and stops in between.
struct Thread {
  context::fiber fiber;   // where it goes on
  context::fiber caller;  // where whoever runs it goes on
  Dim3 index;
  State state = State::done;
  int lane = 0;
  int turn = 0;
  struct Warp* warp = nullptr;
};

// What the lanes gave in this exchange and in the ones before, which some may not have read yet.
struct Warp {
  alignas(16) std::byte given[kKept][kWarp * kMostGiven] = {};
};

std::mutex running;  // one block at a time, of whatever stream
// Never destroyed: where a GPU is lost a kernel may wait for good, and unwinding its fibers as the
// process exits would end it with an exception.
auto& threads = *new std::vector<std::unique_ptr<Thread>>;
std::vector<Warp> warps;
std::vector<std::byte> shared;
const std::function<void()>* kernel = nullptr;
Thread* current = nullptr;

void stop(State state) {
  Thread& self = *current;
  self.state = state;
  self.caller = std::move(self.caller).resume();
}

void add_thread() {
  auto thread = std::make_unique<Thread>();
  Thread* self = thread.get();
  self->fiber = context::fiber(std::allocator_arg, context::fixedsize_stack(kStackBytes),
                               [self](context::fiber&& caller) {
                                 self->caller = std::move(caller);
                                 for (;;) {
                                   (*kernel)();
                                   stop(State::done);
                                 }
                                 return std::move(self->caller);
                               });
  threads.push_back(std::move(thread));
}

void resume(Thread& thread) {
  current = &thread;
  threadIdx = thread.index;
  thread.fiber = std::move(thread.fiber).resume();
}

[[noreturn]] void diverged(int warp) {
  std::fprintf(stderr,
               "emulator: block %u,%u: some threads of warp %d wait for the block and some for the "
               "warp\n",
               blockIdx.x, blockIdx.y, warp);
  std::abort();
}

// Until every thread of the warp is done or waits for the block.
void run_warp(int warp, int begin, int end) {
  for (;;) {
    int at_warp = 0, at_block = 0;
    for (int i = begin; i < end; ++i) {
      Thread& thread = *threads[static_cast<std::size_t>(i)];
      if (thread.state == State::ready) resume(thread);
      at_warp += thread.state == State::at_warp ? 1 : 0;
      at_block += thread.state == State::at_block ? 1 : 0;
    }
    if (at_warp == 0) return;
    if (at_block > 0) diverged(warp);
    for (int i = begin; i < end; ++i) {
      Thread& thread = *threads[static_cast<std::size_t>(i)];
      if (thread.state == State::at_warp) thread.state = State::ready;
    }
  }
}

void run_block(int n) {
  for (int i = 0; i < n; ++i) {
    Thread& thread = *threads[static_cast<std::size_t>(i)];
    const auto at = static_cast<unsigned>(i);
    thread.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
    thread.state = State::ready;
    thread.lane = i % kWarp;
    thread.turn = 0;
    thread.warp = &warps[static_cast<std::size_t>(i / kWarp)];
  }
  for (bool left = true; left;) {
    for (int begin = 0; begin < n; begin += kWarp)
      run_warp(begin / kWarp, begin, std::min(begin + kWarp, n));
    left = false;
    for (int i = 0; i < n; ++i) {
      Thread& thread = *threads[static_cast<std::size_t>(i)];
      if (thread.state == State::done) continue;
      thread.state = State::ready;
      left = true;
    }
  }
}

}  // namespace

void block_barrier() {
  stop(State::at_block);
}

void warp_barrier() {
  stop(State::at_warp);
}

int lane() {
  return current->lane;
}

const void* gather(const void* own, std::size_t bytes) {
  std::byte* given = current->warp->given[current->turn];
  current->turn = (current->turn + 1) % kKept;
  std::memcpy(given + static_cast<std::size_t>(current->lane) * bytes, own, bytes);
  warp_barrier();
  return given;
}

std::uint64_t exchange(std::uint64_t value, int from) {
  return static_cast<const std::uint64_t*>(gather(&value, sizeof(value)))[from];
}

void* dynamic_shared() {
  const auto at = reinterpret_cast<std::uintptr_t>(shared.data());
  return shared.data() + (256 - at % 256) % 256;
}

void run_kernel(Dim3 grid, Dim3 block, std::size_t shared_bytes,
                const std::function<void()>& body) {
  const std::lock_guard lock(running);
  const auto n = static_cast<int>(block.x * block.y * block.z);
  while (threads.size() < static_cast<std::size_t>(n)) add_thread();
  warps.resize(std::max(warps.size(), static_cast<std::size_t>((n + kWarp - 1) / kWarp)));
  if (shared.size() < shared_bytes + 256) shared.resize(shared_bytes + 256);
  kernel = &body;
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        // What a kernel leaves in shared memory means nothing to the next one.
        std::memset(dynamic_shared(), 0xff, shared_bytes);
        run_block(n);
      }
}

}  // namespace emulated
