#include "base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

namespace tessera {
namespace {

constexpr std::size_t kBufferMiB = std::size_t{1} << 20;

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

// Plans count the bytes that were asked for.
TEST(AlignedBuffer, TakesWhatItHolds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // sanitized.cmake
  GTEST_SKIP() << "the sanitizer takes memory of its own";
#endif
  constexpr std::size_t kCount = 16, kBytes = 2 * kBufferMiB + 4096;
  std::vector<AlignedBuffer> buffers;
  const std::size_t before = resident_bytes();
  for (std::size_t i = 0; i < kCount; ++i) {
    Result<AlignedBuffer> buffer = AlignedBuffer::allocate(kBytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % (2 * kBufferMiB), 0u);
    std::memset(buffer->data(), 1, kBytes);
    buffers.push_back(*std::move(buffer));
  }
  EXPECT_LT(resident_bytes() - before, kCount * kBytes + 2 * kBufferMiB);
}

TEST(AlignedBuffer, IsZeroedAndMoves) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, 5 * kBufferMiB + 1}) {
    Result<AlignedBuffer> made = AlignedBuffer::allocate(bytes);
    ASSERT_TRUE(made);
    AlignedBuffer buffer = *std::move(made);
    EXPECT_EQ(buffer.size(), bytes);
    for (std::size_t i = 0; i < bytes; i += 4096) EXPECT_EQ(buffer.data()[i], std::byte{0});
    EXPECT_EQ(buffer.data()[bytes - 1], std::byte{0});
  }
  EXPECT_FALSE(AlignedBuffer::allocate(std::size_t{1} << 48));
}

}  // namespace
}  // namespace tessera
