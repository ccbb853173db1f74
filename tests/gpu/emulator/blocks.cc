// Blocks of a kernel, one after the other: a fiber for each thread.
#include <algorithm>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <span>
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
  context::fiber fiber;  // where it goes on
  State state = State::done;
  int lane = 0;
  int turn = 0;
  struct Warp* warp = nullptr;
  Dim3 index;
};

// What the lanes gave in this exchange and in the ones before, which some may not have read yet.
struct Warp {
  alignas(16) std::byte given[kKept][kWarp * kMostGiven] = {};
};

std::mutex running;  // one block at a time, of whatever stream
// Never destroyed: where a GPU is lost a kernel may wait for good, and unwinding its fibers as the
// process exits would end it with an exception.
auto& threads = *new std::vector<Thread>;
std::vector<Warp> warps;
std::vector<std::byte> shared;
const std::function<void()>* kernel = nullptr;

// The threads of a warp go on in turn: where one stops the next one does, and run_warp after the
// last. All of it is inlined: after another's stack is taken each return is mispredicted.
Thread* current = nullptr;
Thread* warp_end = nullptr;
auto& after_warp = *new context::fiber;
context::fiber* left_last = nullptr;  // where to keep what it has left

[[gnu::always_inline]] inline void go_on_from(context::fiber& here, Thread* next) {
  while (next != warp_end && next->state != State::ready) ++next;
  if (next != warp_end) {
    current = next;
    threadIdx = next->index;
  }
  left_last = &here;
  context::fiber from = std::move(next != warp_end ? next->fiber : after_warp).resume();
  *left_last = std::move(from);
}

[[gnu::always_inline]] inline void stop(State state) {
  Thread& self = *current;
  self.state = state;
  go_on_from(self.fiber, &self + 1);
}

void add_thread() {
  threads.emplace_back().fiber = context::fiber(
      std::allocator_arg, context::fixedsize_stack(kStackBytes), [](context::fiber&& from) {
        *left_last = std::move(from);
        for (;;) {
          (*kernel)();
          stop(State::done);
        }
        return context::fiber();
      });
}

[[noreturn]] void diverged(int warp) {
  std::fprintf(stderr,
               "emulator: block %u,%u: some threads of warp %d wait for the block and some for the "
               "warp\n",
               blockIdx.x, blockIdx.y, warp);
  std::abort();
}

// Until every thread of the warp is done or waits for the block.
void run_warp(int warp, std::span<Thread> lanes) {
  warp_end = lanes.data() + lanes.size();
  const auto in = [&](State state) { return std::ranges::count(lanes, state, &Thread::state); };
  while (in(State::ready) > 0) {
    go_on_from(after_warp, lanes.data());
    if (in(State::at_warp) > 0 && in(State::at_block) > 0) diverged(warp);
    for (Thread& thread : lanes)
      if (thread.state == State::at_warp) thread.state = State::ready;
  }
}

void run_block(int n) {
  for (int i = 0; i < n; ++i) {
    Thread& thread = threads[static_cast<std::size_t>(i)];
    const auto at = static_cast<unsigned>(i);
    thread.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
    thread.state = State::ready;
    thread.lane = i % kWarp;
    thread.turn = 0;
    thread.warp = &warps[static_cast<std::size_t>(i / kWarp)];
  }
  for (bool left = true; left;) {
    for (int begin = 0; begin < n; begin += kWarp)
      run_warp(begin / kWarp,
               std::span(threads).subspan(static_cast<std::size_t>(begin),
                                          static_cast<std::size_t>(std::min(kWarp, n - begin))));
    left = false;
    for (int i = 0; i < n; ++i) {
      Thread& thread = threads[static_cast<std::size_t>(i)];
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

[[gnu::always_inline]] inline const void* gather_now(const void* own, std::size_t bytes) {
  std::byte* given = current->warp->given[current->turn];
  current->turn = (current->turn + 1) % kKept;
  std::memcpy(given + static_cast<std::size_t>(current->lane) * bytes, own, bytes);
  stop(State::at_warp);
  return given;
}
const void* gather(const void* own, std::size_t bytes) {
  return gather_now(own, bytes);
}

std::uint64_t exchange(std::uint64_t value, int from) {
  return static_cast<const std::uint64_t*>(gather_now(&value, sizeof(value)))[from];
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
