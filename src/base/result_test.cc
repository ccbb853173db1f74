#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace tessera {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0)
    return Error::make(ErrorCode::invalid, "{} is odd; give an even number", value);
  return value / 2;
}

Result<int> quarter(int value) {
  TESSERA_ASSIGN(const int once, half(value));
  TESSERA_ASSIGN(const int twice, half(once));
  return twice;
}

Status require_even(int value) {
  TESSERA_TRY(half(value));
  return {};
}

TEST(Result, CarriesValuesAndErrors) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().message, "3 is odd; give an even number");
  EXPECT_TRUE(require_even(2));
  EXPECT_EQ(require_even(3).error().code, ErrorCode::invalid);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  std::unique_ptr<int> owned = *std::move(result);
  EXPECT_EQ(*owned, 7);
}

TEST(Result, ErrorsTakeContext) {
  EXPECT_EQ(half(3).error().message, "3 is odd; give an even number");
  EXPECT_EQ(std::move(half(3).error()).in("--width").message,
            "--width: 3 is odd; give an even number");
}

}  // namespace
}  // namespace tessera
