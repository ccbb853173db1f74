// RingMemory: the shared memory of a RingChannel, and what each end may rely on about it.
//
// The client creates a memory file, takes all its pages, seals its size, maps it and hands the
// descriptor over with ATTACH; the worker checks the seals (a file that could shrink would kill who
// reads it), the size and the region's id, that the pages are there (or a client could make the
// worker take them) and that nobody has used it yet. A client that gives pages back later makes the
// worker take them all the same, as many as it agreed to: only the same user can (SECURITY.md).
// Layout, all little-endian:
//
//      0  u64 region id, as in ATTACH
//     64  to worker: produced u32 | 64 bytes on: consumed u32 | 64 bytes on: receiver asleep u32,
//         sender asleep u32
//    256  to client: the same
//    512  64 headers to worker, 64 headers to client
//   then  from the next page: arena to worker, arena to client
//
// Bodies lie in the arena one after another in the order of their headers, each from a multiple of
// 64 bytes, wrapping at the end. So nothing but the two indices of a direction has to be shared:
// either end works out the rest for itself and does not read it from the peer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "worker/fd.h"
#include "worker/messages.h"

namespace tessera::worker {

inline constexpr std::uint32_t kRingSlots = 64;
inline constexpr std::uint64_t kArenaAlign = 64;

// The shared words of one direction; each group on its own cache line.
struct RingWords {
  alignas(64) std::atomic<std::uint32_t> produced;
  alignas(64) std::atomic<std::uint32_t> consumed;
  alignas(64) std::atomic<std::uint32_t> receiver_asleep;
  std::atomic<std::uint32_t> sender_asleep;
};
static_assert(sizeof(RingWords) == 192);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// One direction as one end sees it.
struct RingView {
  RingWords* words = nullptr;
  std::byte* headers = nullptr;  // kRingSlots x kHeaderBytes
  std::byte* arena = nullptr;
  std::uint64_t arena_bytes = 0;
};

class RingMemory {
 public:
  struct Sizes {
    std::uint64_t to_worker_bytes = 0;  // multiples of kArenaAlign, not 0
    std::uint64_t to_client_bytes = 0;
  };

  // The client's end. `descriptor` is set to the memory file, to be sent with ATTACH.
  static Result<RingMemory> create(const Sizes& sizes, std::uint64_t region_id, Fd& descriptor);
  // The worker's end, from what the client sent.
  static Result<RingMemory> open(const Attach& attach, const Fd& descriptor);

  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;
  ~RingMemory();

  RingView to_worker() const;
  RingView to_client() const;

 private:
  RingMemory(std::byte* base, std::uint64_t bytes, const Sizes& sizes)
      : base_(base), bytes_(bytes), sizes_(sizes) {}
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  Sizes sizes_;
};

}  // namespace tessera::worker
