// Checks every kernel against scalar arithmetic on random inputs. Ends with a count of failures.
//
//   kernel_test [projections | elementwise | handover | attention | delta | ffn | runs | dense |
//                together | choices]
#include <cstring>

#include "harness.h"

int main(int argc, char** argv) {
  using namespace tessera::gpu::bench;
  const char* only = argc > 1 ? argv[1] : "";
  const auto run = [&](const char* name, void (*test)()) {
    if (*only != 0 && std::strcmp(only, name) != 0) return;
    const int before = failures(), checks_before = checks();
    test();
    std::printf("%-12s %d checks, %d failures\n", name, checks() - checks_before,
                failures() - before);
    std::fflush(stdout);
  };
  run("elementwise", test_elementwise);
  run("handover", test_handover);
  run("projections", test_projections);
  run("delta", test_gated_delta);
  run("attention", test_attention);
  run("ffn", test_ffn);
  run("runs", test_runs);
  run("dense", test_dense_runs);
  run("together", test_together);
  run("choices", test_choices);
  return failures() == 0 ? 0 : 1;
}
