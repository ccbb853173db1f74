// Rows that pass between GPUs (kernels/handover.h), here between two queues of one.
#include "device/gpu/kernels/handover.h"

#include "harness.h"

namespace tessera::gpu::bench {

// Rows that are looked for on one queue before another sends them, twice to the same place. Not the
// first of all: the driver loads a kernel when nothing runs.
void test_handover() {
  if (!hands_over()) {
    std::printf("handover: not on this GPU\n");
    return;
  }
  Runner sends(256), takes(256);
  takes.launch.chained = false;
  constexpr std::int64_t kMost = 10'000'000'000;
  Random random(77);
  for (const int n : {1, 1000, 8 * 2048}) {
    const auto size = static_cast<std::size_t>(n);
    DeviceArray<std::byte> place(static_cast<std::size_t>(handover_bytes(n)));
    for (const std::int32_t number : {1, 2}) {
      const std::vector<float> rows = random.normals(size);
      DeviceArray<std::int32_t> step(std::vector<std::int32_t>{number});
      DeviceArray<float> from(rows), to(size);
      GPU_OK(TESSERA_GPU_API(DeviceSynchronize)());
      const HandoverArgs taken{to.data(), n, place.data(), step.data(), kMost};
      if (number == 2) GPU_OK(take_rows(takes.launch, taken));
      GPU_OK(hand_rows(sends.launch, {from.data(), n, place.data(), step.data()}));
      if (number == 1) GPU_OK(take_rows(takes.launch, taken));
      takes.sync();
      sends.sync();
      check("handover of " + std::to_string(n) + ", step " + std::to_string(number),
            to.get() == rows);
    }
  }
}

}  // namespace tessera::gpu::bench
