#include "worker/body_sum.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tessera::worker {
namespace {

// The bytes that the authors of XXH3 test it with.
std::vector<std::byte> test_bytes(std::size_t n) {
  std::vector<std::byte> bytes;
  for (std::uint64_t next = 2654435761; bytes.size() < n; next *= 11400714785074694797u)
    bytes.push_back(static_cast<std::byte>(next >> 56));
  return bytes;
}

std::uint32_t computed_sum(std::span<const std::byte> bytes) {
  return body_sum(Parts(&bytes, 1));
}

TEST(BodySum, PublishedValues) {
  EXPECT_EQ(computed_sum(test_bytes(1)), 0x074eecdbu);
  EXPECT_EQ(computed_sum(test_bytes(6)), 0xcd2d7325u);
  EXPECT_EQ(computed_sum(test_bytes(48)), 0xecba1f11u);
  EXPECT_EQ(computed_sum(test_bytes(403)), 0x65c6dea4u);
  EXPECT_EQ(computed_sum(test_bytes(2048)), 0xa5f038e0u);
}

TEST(BodySum, OfNothingIsZero) {
  EXPECT_EQ(body_sum({}), 0u);
  EXPECT_EQ(computed_sum({}), 0u);
}

TEST(BodySum, DoesNotDependOnTheParts) {
  const std::vector<std::byte> bytes = test_bytes(1500);
  const std::uint32_t whole = computed_sum(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::array<std::span<const std::byte>, 3> parts = {
        std::span(bytes).first(cut / 2), std::span(bytes).subspan(cut / 2, cut - cut / 2),
        std::span(bytes).subspan(cut)};
    EXPECT_EQ(body_sum(parts), whole) << cut;
  }
}

}  // namespace
}  // namespace tessera::worker
