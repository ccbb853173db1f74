#include "worker/owned_experts.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

// Layers of ten experts, of which a worker has these.
Hello owning(const std::vector<std::vector<int>>& experts) {
  Hello hello{.role = Role::experts};
  hello.dims.n_expert = 10;
  hello.end_layer = static_cast<std::uint32_t>(experts.size());
  std::vector<LayerExperts> layers;
  for (const std::vector<int>& owned : experts) {
    LayerExperts& layer = layers.emplace_back();
    layer.home.assign(10, ExpertHome::host());
    for (const int e : owned) layer.home[static_cast<std::size_t>(e)] = ExpertHome::worker(0);
  }
  hello.owned = owned_bits(layers, ExpertHome::worker(0), 10);
  return hello;
}

TEST(OwnedExperts, AreCounted) {
  const Hello hello = owning({{0, 9}, {}, {1, 2, 8}});
  EXPECT_EQ(count_owned(hello), 5);
  EXPECT_EQ(count_owned(hello, 0), 2);
  EXPECT_EQ(count_owned(hello, 1), 0);
  EXPECT_EQ(count_owned(hello, 2), 3);
}

TEST(OwnedExperts, LeaveByWholeLayersFromTheLastOne) {
  const Hello hello = owning({{0, 9}, {4}, {}, {1, 2, 8}});
  const std::vector<std::int64_t> bytes_of = {10, 100, 0, 20};
  const auto left = [&](std::int64_t bytes) {
    const std::optional<Hello> fewer = without_experts(hello, bytes_of, bytes);
    return fewer ? std::optional(count_owned(*fewer)) : std::nullopt;
  };
  EXPECT_EQ(left(0), 6);
  EXPECT_EQ(left(1), 3);
  EXPECT_EQ(left(60), 3);
  EXPECT_EQ(left(61), 2);
  EXPECT_EQ(left(160), 2);
  EXPECT_EQ(left(161), std::nullopt) << "nothing would be left";
  EXPECT_EQ(left(1000), std::nullopt);
  EXPECT_TRUE(owns(*without_experts(hello, bytes_of, 61), 0, 9));
}

}  // namespace
}  // namespace tessera::worker
