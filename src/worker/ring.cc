#include "worker/ring.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace tessera::worker {
namespace {

std::byte* slot(const RingView& ring, std::uint32_t index) {
  return ring.headers + std::size_t{index % kRingSlots} * kHeaderBytes;
}

Error wild_index(const char* which, std::uint32_t value, std::uint32_t mine) {
  return Error::make(ErrorCode::invalid, "shared ring: the peer's {} index is {}, this end's {}",
                     which, value, mine);
}

}  // namespace

void RingSender::copy_in(std::span<const std::byte> bytes) {
  const std::uint64_t at = head_ % ring_.arena_bytes;
  const std::size_t first = std::min<std::uint64_t>(bytes.size(), ring_.arena_bytes - at);
  std::copy_n(bytes.data(), first, ring_.arena + at);
  std::copy_n(bytes.data() + first, bytes.size() - first, ring_.arena);
  head_ += bytes.size();
}

Result<bool> RingSender::try_send(const FrameHeader& header, Parts parts) {
  const std::uint32_t consumed = ring_.words->consumed.load(std::memory_order_acquire);
  // The receiver moves forward, and not past what was produced.
  if (consumed - consumed_ > produced_ - consumed_)
    return wild_index("consumed", consumed, produced_);
  if (consumed != consumed_) tail_ = ends_[(consumed - 1) % kRingSlots];
  consumed_ = consumed;
  const std::uint64_t need = round_up(header.body_bytes, kArenaAlign);
  if (produced_ - consumed_ == kRingSlots || need > ring_.arena_bytes - (head_ - tail_))
    return false;
  const std::uint64_t end = head_ + need;
  for (const std::span<const std::byte> part : parts) copy_in(part);
  head_ = end;
  std::array<std::byte, kHeaderBytes> raw;
  encode_header(header, raw);
  std::memcpy(slot(ring_, produced_), raw.data(), kHeaderBytes);
  ends_[produced_ % kRingSlots] = end;
  ++produced_;
  // Sequentially consistent, against announce_sleep: either the receiver's second look sees the
  // frame or this end sees the receiver asleep.
  ring_.words->produced.store(produced_);
  wake(ring_.words->receiver_asleep);
  return true;
}

void RingReceiver::copy_out(std::span<std::byte> bytes) const {
  const std::uint64_t at = tail_ % ring_.arena_bytes;
  const std::size_t first = std::min<std::uint64_t>(bytes.size(), ring_.arena_bytes - at);
  std::copy_n(ring_.arena + at, first, bytes.data());
  std::copy_n(ring_.arena, bytes.size() - first, bytes.data() + first);
}

Result<bool> RingReceiver::try_receive(Frame& frame, const WireLimits& limits) {
  const std::uint32_t produced = ring_.words->produced.load();
  if (produced == consumed_) return false;
  if (produced - consumed_ > kRingSlots) return wild_index("produced", produced, consumed_);
  std::array<std::byte, kHeaderBytes> raw;
  std::memcpy(raw.data(), slot(ring_, consumed_), kHeaderBytes);
  TESSERA_ASSIGN(const FrameHeader header, decode_header(raw));
  TESSERA_TRY(check_frame(header, limits));
  if (header.body_bytes > ring_.arena_bytes)
    return Error::make(ErrorCode::invalid, "shared ring: {} of {} bytes in an arena of {}",
                       op_name(header.op), header.body_bytes, ring_.arena_bytes);
  TESSERA_ASSIGN(const std::span<std::byte> body, frame.prepare(header.body_bytes));
  copy_out(body);
  frame.header = header;
  tail_ += round_up(header.body_bytes, kArenaAlign);
  ++consumed_;
  ring_.words->consumed.store(consumed_);
  wake(ring_.words->sender_asleep);
  return true;
}

}  // namespace tessera::worker
