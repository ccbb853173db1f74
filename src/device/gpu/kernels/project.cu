// Projections: decode kernels for few rows and plain weights, tensor-core tiles for many.
#include "device/gpu/kernels/halves.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {

GpuError project(const Launch& launch, const ProjectArgs& args) {
  const Rounding rounding{.rows = static_cast<std::byte*>(launch.workspace)};
  if (args.rows <= kDecodeRows) return project_decode(launch, args, rounding);
  bool staged = false;
  auto* tokens = static_cast<__half*>(launch.workspace);
  const int padded = (args.input.cols + kTileCols - 1) / kTileCols * kTileCols;
  for (int i = 0; i < args.n_outputs; ++i) {
    const Output& output = args.outputs[static_cast<std::size_t>(i)];
    GpuError error{};
    if (is_plain(output.w.type)) {
      const bool both = i + 1 < args.n_outputs &&
                        shares_plain(output, args.outputs[static_cast<std::size_t>(i) + 1]);
      const Output second = both ? args.outputs[static_cast<std::size_t>(++i)] : Output{};
      error = project_plain(launch, args.input, output, second, args.rows);
    } else if (!has_tiles(output.w)) {
      ProjectArgs one = args;
      one.n_outputs = 1;
      one.outputs[0] = output;
      error = project_decode(launch, one, rounding);
    } else {
      if (!staged) error = halve_rows(launch, args.input, args.rows, padded, tokens);
      staged = true;
      if (error == GpuError{}) error = project_tiles(launch, output, tokens, args.rows);
    }
    if (error != GpuError{}) return error;
  }
  return GpuError{};
}

}  // namespace tessera::gpu
