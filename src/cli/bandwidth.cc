#include "cli/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/buffer.h"
#include "base/evict.h"
#include "base/shortest.h"
#include "cli/bandwidth_kernels.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kPiece = std::int64_t{4} << 20;
constexpr std::int64_t kMachineBytes = std::int64_t{8} << 20;  // a thread, where there is room
constexpr int kPasses = 5;
constexpr int kShortPasses = 15;  // each is so short that other work may fill it
constexpr int kMostPasses = 40;
constexpr std::int64_t kRounds = 1'000'000;
constexpr std::int64_t kFewRounds = 100'000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The least that `pass` says of several times. More of them until a second one is nearly as short,
// since other work may be in the least too.
template <typename Pass>
double least_seconds(int passes, Pass pass) {
  Shortest time;
  for (int i = 0; i < passes || (i < kMostPasses && !time.steady()); ++i) time.add(pass());
  return time.seconds();
}

SpeedKernels kernels_for(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::avx512) return speed_kernels_avx512();
  if (isa == cpu::Isa::avx2) return speed_kernels_avx2();
#endif
  static_cast<void>(isa);
  return speed_kernels_portable();
}

// At least `least` and `caches` times the last cache, as far as memory allows.
std::int64_t uncached_bytes(std::int64_t least, int caches, std::int64_t memory) {
  const std::int64_t cache = std::max<std::int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  const std::int64_t wanted = std::max(least, caches * cache);
  return std::max(kPiece, std::min(wanted, memory) / kPiece * kPiece);
}

// That the caches are emptied of, at least.
std::int64_t evicted_bytes(const ThreadTeam& team) {
  return std::max(8, team.size()) * kMiB;
}

struct ReadOptions {
  std::int64_t bytes = 0;  // of the buffer
  std::int64_t piece = kPiece;
  int passes = kPasses;
  bool evict = false;  // before each pass; else the buffer is larger than any cache
};

Result<double> measure_read(ThreadTeam& team, const SpeedKernels& kernels,
                            const ReadOptions& options) {
  const std::int64_t bytes = options.bytes, piece = options.piece;
  TESSERA_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(static_cast<std::size_t>(bytes)));
  const int pieces = static_cast<int>(bytes / piece);
  std::atomic<std::uint64_t> sum{0};
  const auto pass = [&](auto&& work) {
    const Clock::time_point begin = Clock::now();
    team.run([&](TeamMember& member) {
      member.for_each(pieces, 1, [&](int first, int last) {
        work(buffer.data() + first * piece, static_cast<std::size_t>((last - first) * piece));
      });
    });
    return seconds_since(begin);
  };
  // Pages that were never written are all the same one.
  pass([](std::byte* data, std::size_t size) { std::memset(data, 0x5a, size); });
  const double least = least_seconds(options.passes, [&] {
    if (options.evict) pass([](const std::byte* data, std::size_t size) { evict(data, size); });
    return pass([&](const std::byte* data, std::size_t size) {
      sum.fetch_xor(kernels.read(data, size), std::memory_order_relaxed);
    });
  });
  return static_cast<double>(bytes) / least;
}

struct BufferSizes {
  std::int64_t evicted = 0;   // where a program can empty the caches of it
  std::int64_t uncached = 0;  // where it cannot
};

Result<double> measure_memory(ThreadTeam& team, const SpeedKernels& kernels,
                              const BufferSizes& sizes) {
  if (!can_evict()) return measure_read(team, kernels, {.bytes = sizes.uncached});
  return measure_read(
      team, kernels,
      {.bytes = sizes.evicted, .piece = kMiB / 4, .passes = kShortPasses, .evict = true});
}

template <typename Multiply>
double measure_arithmetic(Multiply multiply, double operations_per_round, std::int64_t rounds) {
  const double least = least_seconds(kPasses, [&] {
    const Clock::time_point begin = Clock::now();
    const volatile auto kept = multiply(rounds);
    static_cast<void>(kept);
    return seconds_since(begin);
  });
  return static_cast<double>(rounds) * operations_per_round / least;
}

Result<MachineSpeed> measure(ThreadTeam& team, cpu::Isa isa, const BufferSizes& sizes,
                             std::int64_t rounds) {
  const SpeedKernels kernels = kernels_for(isa);
  MachineSpeed speed;
  TESSERA_ASSIGN(speed.read_bytes_per_s, measure_memory(team, kernels, sizes));
  ThreadTeam alone({.threads = 1});
  TESSERA_ASSIGN(speed.thread_read_bytes_per_s, measure_memory(alone, kernels, sizes));
  // Several threads that share one core are no faster than one.
  speed.read_bytes_per_s = std::max(speed.read_bytes_per_s, speed.thread_read_bytes_per_s);
  speed.f32_flop_per_s =
      measure_arithmetic(kernels.multiply_f32, kernels.f32_flop_per_round, rounds);
  if (kernels.multiply_int8 != nullptr)
    speed.int8_op_per_s =
        measure_arithmetic(kernels.multiply_int8, kernels.int8_op_per_round, rounds);
  return speed;
}

}  // namespace

Result<MachineSpeed> measure_machine(ThreadTeam& team, cpu::Isa isa, std::int64_t memory) {
  const std::int64_t least = evicted_bytes(team);
  const std::int64_t bytes =
      std::clamp(team.size() * kMachineBytes, least, std::max(least, memory / kMiB * kMiB));
  return measure(team, isa, {bytes, uncached_bytes(kGiB, 4, memory)}, kRounds);
}

Result<MachineSpeed> look_at_machine(ThreadTeam& team, cpu::Isa isa, std::int64_t memory) {
  return measure(team, isa, {evicted_bytes(team), uncached_bytes(kGiB / 4, 2, memory / 4)},
                 kFewRounds);
}

}  // namespace tessera::cli
