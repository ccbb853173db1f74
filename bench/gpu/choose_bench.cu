// Times the choice of a token from logits of one row, 248,320 of standard deviation 2.5: the
// largest, and draws with filters of each kind.
#include "bench.h"
#include "device/gpu/kernels/choose.h"

namespace tessera::gpu::bench {

void bench_draws() {
  constexpr int kVocab = 248320, kTimes = 20;
  Runner runner(choose_workspace(1));
  DeviceArray<RowChoice> choices(1);
  DeviceArray<ChosenRow> chosen(1);
  float* logits = floats(kVocab, 2.5f, 21);
  const auto run = [&](const char* name, bool sampled, const RowChoice& choice) {
    choices.put({choice});
    const double us = median_us(runner.launch.stream, [&] {
      for (int i = 0; i < kTimes; ++i)
        GPU_OK(choose(runner.launch, {.logits = logits,
                                      .rows = 1,
                                      .n_vocab = kVocab,
                                      .n_token = kVocab,
                                      .sampled = sampled,
                                      .choices = choices.data(),
                                      .out = chosen.data()}));
    });
    std::printf("%-34s rows %5d  %9.2f us\n", name, 1, us / kTimes);
    std::fflush(stdout);
  };
  run("choice: largest", false, {});
  run("choice: temperature", true, {.uniform = 0.5, .temperature = 0.8f, .top_p = 1.0f});
  run("choice: top-k 40, top-p 0.95", true,
      {.uniform = 0.5, .temperature = 0.8f, .top_p = 0.95f, .top_k = 40});
  run("choice: top-p 0.95", true, {.uniform = 0.5, .temperature = 0.8f, .top_p = 0.95f});
  run("choice: top-k 1000", true,
      {.uniform = 0.5, .temperature = 0.8f, .top_p = 1.0f, .top_k = 1000});
  (void)cudaFree(logits);
}

}  // namespace tessera::gpu::bench
