#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/checked.h"

namespace tessera {
namespace {
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

Result<AlignedBuffer> AlignedBuffer::allocate(std::size_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  const auto no_memory = [bytes] {
    return Error::make(ErrorCode::exhausted, "cannot allocate {} bytes of memory", bytes);
  };
  if (bytes > (std::size_t{1} << 47)) return no_memory();
  if (bytes < kHugePage) {
    void* data = std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
    if (!data) return no_memory();
    std::memset(data, 0, bytes);
    buffer.data_ = static_cast<std::byte*>(data);
  } else {
    // One extra huge page of address space lets the start be aligned to one. What does not fill one
    // at the end stays on small pages: it would take up to 2 MiB that nobody planned.
    const std::size_t size = round_up(bytes, kPage);
    const std::size_t span = size + kHugePage;
    void* base = mmap(nullptr, span, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return no_memory();
    auto address = reinterpret_cast<std::uintptr_t>(base);
    const std::size_t head = round_up<std::uintptr_t>(address, kHugePage) - address;
    if (head > 0) munmap(base, head);
    std::byte* data = static_cast<std::byte*>(base) + head;
    if (span - head > size) munmap(data + size, span - head - size);
    madvise(data, size / kHugePage * kHugePage, MADV_HUGEPAGE);
    buffer.data_ = data;
    buffer.mapped_ = size;
  }
  buffer.size_ = bytes;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_ > 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace tessera
