#include "plan/kv_reservation.h"

#include <gtest/gtest.h>

#include "model/model.h"

namespace tessera {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// 24 GiB with the weights, experts and density that were published for one card.
KvDemand published(std::int64_t context, std::int64_t pool, bool drafter = true) {
  return {.device = 24 * 1024 * kMiB,
          .fixed = (3194 + 200 + (drafter ? 256 + 1200 : 512)) * kMiB,
          .experts = 13507 * kMiB,
          .token = 80 * 1024,
          .context = context,
          .pool = pool};
}

TEST(KvReservation, PublishedCases) {
  EXPECT_TRUE(reserve_kv(published(65536, 0)).pool_redundant);
  const KvReservation hot = reserve_kv(published(65536, 49152));
  EXPECT_TRUE(hot.pool_redundant);
  EXPECT_FALSE(hot.pool_reduced);
  EXPECT_EQ(hot.tokens, 65536);
  EXPECT_FALSE(reserve_kv(published(131072, 0)).pool_redundant);
  const KvReservation pool = reserve_kv(published(131072, 49152));
  EXPECT_TRUE(pool.pool_reduced);
  EXPECT_EQ(pool.tokens, 49152);
  EXPECT_FALSE(reserve_kv(published(131072, 131072)).pool_reduced);
  EXPECT_FALSE(reserve_kv(published(131072, 200000)).pool_reduced);
  EXPECT_EQ(reserve_kv(published(131072, 16384, false)).tokens, 16384);
}

// The pool keeps the experts resident, so it must not be switched off because they are.
TEST(KvReservation, APoolThatMakesRoomIsNotRedundant) {
  const KvReservation kv = reserve_kv(published(131072, 49152));
  EXPECT_EQ(kv.expert_bytes, 13507 * kMiB);
  EXPECT_FALSE(kv.pool_redundant);
}

TEST(KvReservation, WhatTheRightDensityGives) {
  KvDemand demand = published(131072, 0);
  demand.token = 20480;
  EXPECT_TRUE(reserve_kv(demand).pool_redundant);
}

TEST(KvReservation, NeverWraps) {
  const KvReservation kv =
      reserve_kv({.device = 10, .fixed = 100, .experts = 5, .token = 1, .context = 4});
  EXPECT_EQ(kv.expert_bytes, 0);
  EXPECT_FALSE(kv.pool_redundant);
  EXPECT_EQ(kv_pool_tokens({.free = 5, .reserve = 50, .token = 1, .context = 4096}), 512);
}

// A model without experts: nothing but its KV can lack room.
TEST(KvReservation, ADenseModelNeedsItsPoolWhereTheContextDoesNotFit) {
  KvDemand demand{.device = 24 * 1024 * kMiB,
                  .fixed = 16 * 1024 * kMiB,
                  .token = kMiB,
                  .context = 131072,
                  .pool = 4096};
  const KvReservation kv = reserve_kv(demand);
  EXPECT_FALSE(kv.pool_redundant);
  EXPECT_EQ(kv.tokens, 4096);
  demand.context = 8192;
  EXPECT_TRUE(reserve_kv(demand).pool_redundant);
}

TEST(KvReservation, PoolSizes) {
  const KvPoolOptions options{
      .free = 8192 * kMiB, .reserve = 1536 * kMiB, .token = 20480, .context = 131072};
  EXPECT_EQ(kv_pool_tokens(options), 16384);
  KvPoolOptions small = options;
  small.free = 1736 * kMiB;  // 100 MiB for KV: 5120 tokens
  EXPECT_EQ(kv_pool_tokens(small), 5120);
  small.context = 300;
  EXPECT_EQ(kv_pool_tokens(small), 300);
}

// Reservation and allocation read one number, so that they cannot differ.
TEST(KvReservation, WhatIsSizedOnceIsWhatIsReserved) {
  const KvPoolOptions automatic{
      .free = 8192 * kMiB, .reserve = 1536 * kMiB, .token = 80 * 1024, .context = 131072};
  KvPoolOptions tight = automatic, explicitly = automatic, unknown = automatic, none = automatic;
  tight.free = 1500 * kMiB;
  explicitly.asked = 49000;
  unknown.free.reset();
  none.asked = 0;
  const std::pair<KvPoolOptions, std::int64_t> cases[] = {
      {automatic, 16384}, {tight, 512}, {explicitly, 49152}, {unknown, 131072}, {none, 131072}};
  for (const auto& [options, reserved] : cases) {
    const std::int64_t pool = kv_pool_tokens(options);
    EXPECT_EQ(pool, options.asked == 0 ? 0 : reserved);
    const KvReservation kv = reserve_kv(published(131072, pool));
    EXPECT_EQ(kv.tokens, reserved);
    EXPECT_EQ(kv.bytes, reserved * 80 * 1024);
    EXPECT_EQ(kv.pool_reduced, reserved < 131072);
  }
}

TEST(KvReservation, WhatIsAskedForKeepsItsLimits) {
  KvPoolOptions options{.asked = 1, .token = 1, .context = 4096};
  EXPECT_EQ(kv_pool_tokens(options), 512);
  options.asked = 1 << 30;
  EXPECT_EQ(kv_pool_tokens(options), 4096);
  options.asked = 1000;
  options.context = 900;
  EXPECT_EQ(kv_pool_tokens(options), 900);
}

TEST(KvReservation, TokensCountTheLayersThatStoreKv) {
  const Result<Model> model =
      Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  ASSERT_TRUE(model);
  std::int64_t expected = 0;
  for (const LayerSpec& layer : model->spec().layers)
    if (const AttentionSpec* a = layer.attention())
      expected += 2LL * a->n_kv_head * (a->head_dim_k + a->head_dim_v);
  EXPECT_EQ(kv_token_bytes(model->spec(), KvType::f16), expected);
}

}  // namespace
}  // namespace tessera
