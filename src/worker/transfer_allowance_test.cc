#include "worker/transfer_allowance.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

TEST(TransferAllowance, APeerThatIsSlowEachTimeIsNotWaitedForAgain) {
  TransferAllowance allowance(30s);
  EXPECT_EQ(allowance.most(), 30s);
  allowance.waited(29s);
  allowance.moved(kLeastTransferRate / 4);
  EXPECT_EQ(allowance.most(), 1250ms);
  allowance.waited(1250ms);
  EXPECT_EQ(allowance.most(), 0s);
}

TEST(TransferAllowance, APeerThatKeepsTheRateHasItsPatienceForEachFrame) {
  TransferAllowance allowance(30s);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(allowance.most(), 30s);
    allowance.waited(1s);
    allowance.moved(kLeastTransferRate);
  }
}

}  // namespace
}  // namespace tessera::worker
