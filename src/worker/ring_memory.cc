#include "worker/ring_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "worker/byte_codec.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

constexpr std::size_t kToWorkerWords = 64;
constexpr std::size_t kToClientWords = 256;
constexpr std::size_t kHeadersAt = 512;
constexpr std::size_t kRingHeaders = std::size_t{kRingSlots} * kHeaderBytes;
constexpr std::uint64_t kArenasAt = round_up<std::uint64_t>(kHeadersAt + 2 * kRingHeaders, 4096);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::uint64_t region_bytes(const RingMemory::Sizes& sizes) {
  return kArenasAt + sizes.to_worker_bytes + sizes.to_client_bytes;
}

// What another transport helps against.
Error no_memory(const char* what) {
  return Error::make(ErrorCode::exhausted, "{}", system_error(what).message);
}

Result<std::byte*> map(int fd, std::uint64_t bytes) {
  // With its pages, which create() took, or each of the first bodies would wait for some.
  constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, fd, 0);
  if (at == MAP_FAILED) return no_memory("mapping the shared memory of a worker");
  return static_cast<std::byte*>(at);
}

Status check_sizes(const RingMemory::Sizes& sizes) {
  for (const std::uint64_t bytes : {sizes.to_worker_bytes, sizes.to_client_bytes})
    if (bytes == 0 || bytes % kArenaAlign != 0)
      return Error::make(ErrorCode::invalid,
                         "shared memory with arenas of {} and {} bytes, not multiples of {}",
                         sizes.to_worker_bytes, sizes.to_client_bytes, kArenaAlign);
  return {};
}

bool unused(const RingView& ring) {
  return ring.words->produced.load() == 0 && ring.words->consumed.load() == 0;
}

}  // namespace

Result<RingMemory> RingMemory::create(const Sizes& sizes, std::uint64_t region_id, Fd& descriptor) {
  TESSERA_TRY(check_sizes(sizes));
  if (std::max(sizes.to_worker_bytes, sizes.to_client_bytes) > kMostArenaBytes)
    return Error::make(ErrorCode::exhausted,
                       "shared memory with arenas of {} and {} bytes; the most is {}",
                       sizes.to_worker_bytes, sizes.to_client_bytes, kMostArenaBytes);
  Fd fd(::memfd_create("tessera-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return no_memory("creating the shared memory of a worker");
  const std::uint64_t bytes = region_bytes(sizes);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return no_memory("taking the shared memory of a worker");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return system_error("sealing the shared memory of a worker");
  TESSERA_ASSIGN(std::byte* const base, map(fd.get(), bytes));
  store_le(base, region_id);
  descriptor = std::move(fd);
  return RingMemory(base, bytes, sizes);
}

Result<RingMemory> RingMemory::open(const Attach& attach, const Fd& descriptor) {
  const Sizes sizes{attach.to_worker_bytes, attach.to_client_bytes};
  TESSERA_TRY(check_sizes(sizes));
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSize) != kSize)
    return Error::make(ErrorCode::invalid,
                       "the peer's shared memory is not sealed against another size");
  struct stat status {};
  const std::uint64_t bytes = region_bytes(sizes);
  if (::fstat(descriptor.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != bytes)
    return Error::make(ErrorCode::invalid, "the peer's shared memory has {} bytes instead of {}",
                       status.st_size, bytes);
  constexpr std::uint64_t kBlock = 512;  // of st_blocks, whatever the file system's is
  if (static_cast<std::uint64_t>(status.st_blocks) * kBlock < bytes)
    return Error::make(ErrorCode::invalid,
                       "the peer's shared memory is not backed: using it would take memory here");
  TESSERA_ASSIGN(std::byte* const base, map(descriptor.get(), bytes));
  RingMemory memory(base, bytes, sizes);
  if (load_le<std::uint64_t>(base) != attach.region_id || !unused(memory.to_worker()) ||
      !unused(memory.to_client()))
    return Error::make(ErrorCode::invalid,
                       "the peer's shared memory belongs to another connection");
  return memory;
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_), sizes_(other.sizes_) {}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(sizes_, other.sizes_);
  return *this;
}

RingMemory::~RingMemory() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

RingView RingMemory::to_worker() const {
  return {.words = reinterpret_cast<RingWords*>(base_ + kToWorkerWords),
          .headers = base_ + kHeadersAt,
          .arena = base_ + kArenasAt,
          .arena_bytes = sizes_.to_worker_bytes};
}

RingView RingMemory::to_client() const {
  return {.words = reinterpret_cast<RingWords*>(base_ + kToClientWords),
          .headers = base_ + kHeadersAt + kRingHeaders,
          .arena = base_ + kArenasAt + sizes_.to_worker_bytes,
          .arena_bytes = sizes_.to_client_bytes};
}

}  // namespace tessera::worker
