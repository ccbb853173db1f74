#include "worker/transport.h"

#include <utility>

namespace tessera::worker {
namespace {

// A peer of an earlier version is let through, to be refused in the handshake.
Status check_sum(const FrameHeader& header, std::span<const std::byte> body) {
  if (header.version < kFirstVersionWithSums) return {};
  const std::uint32_t sum = body_sum(Parts(&body, 1));
  if (sum == header.body_sum) return {};
  return Error::make(ErrorCode::invalid,
                     "the checksum of {}'s body is {:08x}, its bytes make {:08x}",
                     op_name(header.op), header.body_sum, sum);
}

}  // namespace

Result<std::span<std::byte>> Frame::prepare(std::uint64_t bytes) {
  if (bytes > storage_.size()) {
    TESSERA_ASSIGN(AlignedBuffer grown, AlignedBuffer::allocate(bytes));
    storage_ = std::move(grown);
  }
  size_ = bytes;
  return std::span<std::byte>(storage_.data(), size_);
}

void Channel::seal(FrameHeader& header, Parts parts) {
  header.body_bytes = 0;
  for (const std::span<const std::byte> part : parts) header.body_bytes += part.size();
  header.body_sum = body_sum(parts);
}

Result<bool> Channel::checked(Result<bool> came, const Frame& frame) {
  if (!came || !*came) return came;
  Status status = check_sum(frame.header, frame.body());
  if (status) return true;
  close();
  return std::move(status).error().in(describe());
}

}  // namespace tessera::worker
