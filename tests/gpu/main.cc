// The tests of GPUs. Where none of those asked for could run, that is neither success nor failure,
// which ctest tells by the exit status.
#include "tests/gpu/gpu_fixture.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  const int skipped = all.skipped_test_count();
  if (result != 0 || skipped == 0 || skipped < all.test_to_run_count()) return result;
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt
  const tessera::testing::TestGpu& gpu = tessera::testing::test_gpu();
  std::printf(
      "skipped: all %d tests: %s\n", skipped,
      gpu.name ? "the GPU is not what they need" : ("no GPU to test on: " + gpu.reason).c_str());
  return kSkipped;
}
