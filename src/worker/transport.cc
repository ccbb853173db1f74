#include "worker/transport.h"

#include <utility>

namespace tessera::worker {

Result<std::span<std::byte>> Frame::prepare(std::uint64_t bytes) {
  if (bytes > storage_.size()) {
    TESSERA_ASSIGN(AlignedBuffer grown, AlignedBuffer::allocate(bytes));
    storage_ = std::move(grown);
  }
  size_ = bytes;
  return std::span<std::byte>(storage_.data(), size_);
}

}  // namespace tessera::worker
