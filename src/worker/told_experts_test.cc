#include "worker/told_experts.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// Four layers with two experts for each row: eight pairs a row. An expert has 96 bytes in f32.
Hello hello() {
  return {.dims = {.n_embd = 4, .n_expert_used = 2, .n_ff_expert = 2},
          .first_layer = 1,
          .end_layer = 5};
}

TEST(ToldExperts, TellsWhatIsNew) {
  ToldExperts told(hello(), Deadline());
  EXPECT_EQ(*told.take({}, Deadline()), ExpertCounts{});
  told.sent(2);
  const ExpertCounts first{16, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 16 * 96, 13, 14, 15, 16};
  EXPECT_EQ(*told.take(first, Deadline(1s)), first);
  EXPECT_EQ(*told.take(first, Deadline(2s)), ExpertCounts{});
  told.sent(1);
  const ExpertCounts next{24, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 16 * 96, 13, 14, 15, 16};
  EXPECT_EQ(told.take(next, Deadline(2s))->pairs_resident, 8u);
}

TEST(ToldExperts, NoCountFalls) {
  for (const ExpertCountField& field : kExpertCountFields) {
    ToldExperts told(hello(), Deadline());
    told.sent(1);
    ExpertCounts counts;
    counts.*field.value = 8;
    ASSERT_TRUE(told.take(counts, Deadline(1s)));
    counts.*field.value = 7;
    const Result<ExpertCounts> fallen = told.take(counts, Deadline(1s));
    ASSERT_FALSE(fallen);
    EXPECT_EQ(fallen.error().code, ErrorCode::invalid);
    EXPECT_NE(fallen.error().message.find("from 8 to 7"), std::string::npos);
  }
}

TEST(ToldExperts, NoCountPassesWhatWasSent) {
  for (const auto& [field, unit] : kExpertCountFields) {
    if (unit == ExpertCountField::Unit::microseconds) continue;
    const std::uint64_t most = unit == ExpertCountField::Unit::bytes ? 8 * 96 : 8;
    for (const std::uint64_t much : {most + 1, ~std::uint64_t{0}}) {
      ToldExperts told(hello(), Deadline());
      told.sent(1);
      ExpertCounts counts;
      counts.*field = much;
      const Result<ExpertCounts> wild = told.take(counts, Deadline(1s));
      ASSERT_FALSE(wild);
      EXPECT_EQ(wild.error().code, ErrorCode::invalid);
    }
  }
}

TEST(ToldExperts, TimesCountAsFarAsTheyCanHavePassed) {
  ToldExperts told(hello(), Deadline(1s));
  const ExpertCounts counts{.host_wait_us = ~std::uint64_t{0}, .host_hidden_us = 700'000};
  const ExpertCounts first = *told.take(counts, Deadline(1500ms));
  EXPECT_EQ(first.host_wait_us, 500'000u);
  EXPECT_EQ(first.host_hidden_us, 500'000u);
  const ExpertCounts second = *told.take(counts, Deadline(2s));
  EXPECT_EQ(second.host_wait_us, 500'000u);
  EXPECT_EQ(second.host_hidden_us, 200'000u) << "the rest of what it told";
}

}  // namespace
}  // namespace tessera::worker
