// Projections: decode kernels for few rows and plain weights, tensor-core tiles for many.
#include <array>

#include "device/gpu/kernels/gemm.cuh"
#include "device/gpu/kernels/halves.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {

namespace {

struct ProjectRoom {
  HalfRows tokens, rest;
  GemmRoom weights;
};
ProjectRoom room_of(const Launch& launch, const ProjectArgs& args) {
  const int col_tiles = (args.input.cols + kTileCols - 1) / kTileCols;
  auto* at = static_cast<std::byte*>(launch.workspace);
  const std::size_t bytes = half_rows_bytes(static_cast<std::size_t>(args.rows), args.input.cols);
  ProjectRoom room{.tokens = {reinterpret_cast<__half*>(at), col_tiles},
                   .rest = {reinterpret_cast<__half*>(at + bytes), col_tiles}};
  if (launch.workspace_bytes > 2 * bytes)
    room.weights = {at + 2 * bytes, launch.workspace_bytes - 2 * bytes};
  return room;
}

// Quantised matrices together, then plain ones.
GpuError project_long(const Launch& launch, const ProjectArgs& args, const ProjectRoom& room) {
  std::array<Output, kMaxOutputs> quantised, plain;
  std::size_t n_quantised = 0, n_plain = 0;
  for (int i = 0; i < args.n_outputs; ++i) {
    const Output& output = args.outputs[static_cast<std::size_t>(i)];
    (is_plain(output.w.type) ? plain[n_plain++] : quantised[n_quantised++]) = output;
  }
  GpuError error =
      halve_rows(launch, args.input, args.rows, room.tokens, n_plain > 0 ? room.rest : HalfRows{});
  if (error == GpuError{} && n_quantised > 0)
    error = gemm(launch, std::span(quantised).first(n_quantised), room.tokens, {}, args.rows,
                 room.weights);
  if (error == GpuError{} && n_plain > 0)
    error = gemm(launch, std::span(plain).first(n_plain), room.tokens, room.rest, args.rows,
                 room.weights);
  return error;
}

}  // namespace

GpuError project(const Launch& launch, const ProjectArgs& args) {
  const Rounding rounding{.rows = static_cast<std::byte*>(launch.workspace)};
  if (args.rows <= kDecodeRows) return project_decode(launch, args, rounding);
  const ProjectRoom room = room_of(launch, args);
  if (goes_by_gemm(launch, args.rows, args.input.cols, room.weights))
    return project_long(launch, args, room);
  bool staged = false;
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
      if (!staged) error = halve_rows(launch, args.input, args.rows, room.tokens, {});
      staged = true;
      if (error == GpuError{}) error = project_tiles(launch, output, room.tokens, args.rows);
    }
    if (error != GpuError{}) return error;
  }
  return GpuError{};
}

}  // namespace tessera::gpu
