// The inner loops of bandwidth.h, one set for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cli {

struct SpeedKernels {
  // Reads all of it; `bytes` is a multiple of 512. The sum keeps the compiler honest.
  std::uint64_t (*read)(const std::byte* data, std::size_t bytes);
  // Rounds of independent multiply-adds in registers; return what keeps them alive.
  float (*multiply_f32)(std::int64_t rounds);
  std::int32_t (*multiply_int8)(std::int64_t rounds);
  double f32_flop_per_round;
  double int8_op_per_round;
};

SpeedKernels speed_kernels_portable();
SpeedKernels speed_kernels_avx2();
SpeedKernels speed_kernels_avx512();

}  // namespace tessera::cli
