// Rows normed, gated and rounded once, a warp a super-block, for a product whose blocks would each
// do it anew. Floor: the launch; 8 rows of 2048 columns are 64 KB.
#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/super_input.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps* kWarp)
    round_kernel(const TESSERA_GRID_CONSTANT Input in, std::byte* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int super = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int row = static_cast<int>(blockIdx.y);
  if (super >= in.cols / kSuperCols) return;
  const Eight weight = super_weight(in, super, lane);
  chain_wait();
  chain_trigger();
  char* to = rounded_row(out, in.cols, row);
  put_input(in, load_input(in, row, super, lane), weight, lane, to + super * kSuperBytes,
            rounded_squares(to, in.cols) + super);
}

}  // namespace

GpuError round_rows(const Launch& launch, const Input& input, int rows, std::byte* out) {
  // The mixer has left them there (leaves_rounded(), attention_leaves_rounded()), and nothing came
  // between.
  if (input.rounded && out == launch.workspace) return GpuError{};
  const int blocks = (input.cols / kSuperCols + kWarps - 1) / kWarps;
  return launch_kernel(launch, round_kernel,
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)),
                       dim3(kWarps * kWarp), 0, input, out);
}

}  // namespace tessera::gpu
