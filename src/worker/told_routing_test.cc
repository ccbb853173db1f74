#include "worker/told_routing.h"

#include <gtest/gtest.h>

#include <array>

namespace tessera::worker {
namespace {

// Three layers; the first has no experts, the second two of the four that the third has.
ModelSpec spec_of() {
  ModelSpec spec;
  spec.layers.resize(3);
  spec.layers[1].moe = MoeSpec{.n_expert = 2, .n_used = 1};
  spec.layers[2].moe = MoeSpec{.n_expert = 4, .n_used = 2};
  return spec;
}

class Telling : public testing::Test {
 protected:
  using Times = std::array<std::uint32_t, 4>;

  static Hello hello() {
    return {.dims = {.n_layer = 3, .n_expert = 4, .n_expert_used = 2},
            .first_layer = 0,
            .end_layer = 3};
  }
  Status tell(std::span<const std::uint32_t> times) {
    std::vector<std::byte> body;
    encode_routed(times, static_cast<std::uint32_t>(times.size()), body);
    return told_.take(body);
  }
  // Layers in turn.
  void tell_all(const Times& second, const Times& third) {
    EXPECT_EQ(told_.ask(), 1);
    EXPECT_TRUE(tell(second));
    EXPECT_EQ(told_.ask(), 2);
    EXPECT_TRUE(tell(third));
  }
  std::vector<std::uint32_t> taken(int layer) {
    const std::span<const std::uint32_t> news = counts_.take(layer);
    return {news.begin(), news.end()};
  }
  void expect_lie(const Times& times) {
    const Status lie = tell(times);
    ASSERT_FALSE(lie);
    EXPECT_EQ(lie.error().code, ErrorCode::invalid);
    EXPECT_NE(lie.error().message.find("ROUTED"), std::string::npos) << lie.error().message;
    for (const int layer : {1, 2})
      for (const std::uint32_t n : taken(layer)) EXPECT_EQ(n, 0u) << "nothing of it counts";
  }

  RoutingCounts counts_{spec_of()};
  ToldRouting told_{hello(), &counts_};
};

TEST_F(Telling, IsAskedForLayersWithExpertsInTurn) {
  EXPECT_FALSE(told_.ask()) << "nothing was computed";
  told_.answered(3);
  tell_all({1, 2}, {3, 2, 1, 0});
  EXPECT_FALSE(told_.is_due());
  EXPECT_FALSE(told_.ask()) << "nothing since";
  EXPECT_EQ(taken(1), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(taken(2), (std::vector<std::uint32_t>{3, 2, 1, 0}));
  told_.answered(1);
  tell_all({1, 0}, {0, 0, 1, 1});
  EXPECT_EQ(taken(1), (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(taken(2), (std::vector<std::uint32_t>{0, 0, 1, 1}));
}

TEST_F(Telling, IsAskedAgainForJobsThatWereAnsweredMeanwhile) {
  told_.answered(1);
  EXPECT_EQ(told_.ask(), 1);
  told_.answered(1);
  EXPECT_TRUE(tell(Times{1, 0}));
  EXPECT_EQ(told_.ask(), 2);
  EXPECT_TRUE(tell(Times{2, 2}));
  EXPECT_EQ(told_.ask(), 1);
  EXPECT_TRUE(tell(Times{0, 1}));
  EXPECT_FALSE(told_.is_due());
}

// What could not be sent is asked for again.
TEST_F(Telling, KeepsItsTurnUntilItIsAnswered) {
  told_.answered(1);
  EXPECT_EQ(told_.ask(), 1);
  EXPECT_EQ(told_.ask(), 1);
}

TEST_F(Telling, NoExpertPassesTheRows) {
  for (const std::uint32_t much : {4u, ~0u}) {
    told_ = ToldRouting(hello(), &counts_);
    told_.answered(3);
    ASSERT_EQ(told_.ask(), 1);
    expect_lie({much, 0});
    expect_lie({0, much});
  }
}

TEST_F(Telling, NorInSeveralParts) {
  told_.answered(3);
  tell_all({3, 0}, {3, 3, 0, 0});
  (void)taken(1), (void)taken(2);
  told_.answered(1);
  ASSERT_EQ(told_.ask(), 1);
  expect_lie({2, 0});
  expect_lie({1, 1});
  EXPECT_TRUE(tell(Times{0, 1}));
  (void)taken(1);
  ASSERT_EQ(told_.ask(), 2);
  expect_lie({2, 0, 0, 0});
  expect_lie({1, 1, 1, 0});
  expect_lie({0xffffffff, 1, 0, 0});
  EXPECT_TRUE(tell(Times{0, 0, 1, 1}));
}

TEST_F(Telling, NoLayerUsesMoreExpertsThanItHas) {
  told_.answered(3);
  ASSERT_EQ(told_.ask(), 1);
  expect_lie({2, 2, 0, 0});
  expect_lie({1, 1, 1, 0});
  expect_lie({0, 0, 0, 1});
}

TEST_F(Telling, BodiesHaveTheirLength) {
  told_.answered(3);
  ASSERT_EQ(told_.ask(), 1);
  const std::vector<std::byte> bytes(5 * sizeof(std::uint32_t));
  for (const std::size_t n : {0, 4, 15, 17, 20})
    EXPECT_FALSE(told_.take(std::span(bytes).first(n))) << n;
  EXPECT_TRUE(told_.take(std::span(bytes).first(16)));
}

TEST_F(Telling, NothingIsAskedForWithoutCounts) {
  told_ = ToldRouting(hello(), nullptr);
  told_.answered(3);
  EXPECT_FALSE(told_.is_due());
  EXPECT_FALSE(told_.ask());
}

}  // namespace
}  // namespace tessera::worker
