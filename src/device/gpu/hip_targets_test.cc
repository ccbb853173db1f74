#include "device/gpu/hip_targets.h"

#include <gtest/gtest.h>

namespace tessera::gpu {
namespace {

TEST(HipTargets, RunOnTheirProcessorsAlone) {
  EXPECT_EQ(hip_refusal("gfx906,gfx1030", "gfx906:sramecc+:xnack-"), "");
  EXPECT_EQ(hip_refusal("gfx906,gfx1030", "gfx1030"), "");
  EXPECT_EQ(hip_refusal("gfx906,gfx1030", "gfx1100"),
            "this build has kernels for gfx906,gfx1030 alone and the device is a gfx1100: build it "
            "with -DTESSERA_HIP_TARGETS=gfx1100");
  EXPECT_NE(hip_refusal("gfx1030", "gfx103"), "");
  EXPECT_NE(hip_refusal("gfx103", "gfx1030"), "");
  EXPECT_NE(hip_refusal("", "gfx1030"), "");
}

TEST(HipTargets, MayWantFeatures) {
  EXPECT_EQ(hip_refusal("gfx90a:xnack-", "gfx90a:sramecc+:xnack-"), "");
  EXPECT_EQ(hip_refusal("gfx90a:xnack-:sramecc+", "gfx90a:sramecc+:xnack-"), "");
  EXPECT_NE(hip_refusal("gfx90a:xnack+", "gfx90a:sramecc+:xnack-"), "");
}

TEST(HipTargets, GenericOnesAreLeftToTheDriver) {
  EXPECT_EQ(hip_refusal("gfx906,gfx10-3-generic", "gfx1031"), "");
}

}  // namespace
}  // namespace tessera::gpu
