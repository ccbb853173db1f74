// Projections: decode kernels for few rows; for many, tensor-core tiles or, where the device has it
// and the matrices are large enough, a GEMM.
#include <array>

#include "device/gpu/kernels/gemm.cuh"
#include "device/gpu/kernels/halves.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {
namespace {

struct Group {
  std::array<Output, kMaxOutputs> outputs{};
  std::size_t n = 0;

  void add(const Output& output) { outputs[n++] = output; }
  std::span<const Output> all() const { return std::span(outputs).first(n); }
};

struct ProjectRoom {
  HalfRows tokens, rest;
  GemmRoom weights;
};
ProjectRoom room_of(const Launch& launch, const ProjectArgs& args) {
  const int col_tiles = (args.input.cols + kTileCols - 1) / kTileCols;
  auto* at = static_cast<std::byte*>(launch.workspace);
  const std::size_t bytes = half_rows_bytes(static_cast<std::size_t>(args.rows), args.input.cols);
  const std::size_t used = args.rows < kGemmRows ? bytes : 2 * bytes;
  ProjectRoom room{.tokens = {reinterpret_cast<__half*>(at), col_tiles},
                   .rest = {reinterpret_cast<__half*>(at + bytes), col_tiles}};
  if (launch.workspace_bytes > used) room.weights = {at + used, launch.workspace_bytes - used};
  return room;
}

// Two matrices in one launch where they fit.
GpuError project_each_plain(const Launch& launch, const ProjectArgs& args, const Group& plain) {
  for (std::size_t i = 0; i < plain.n; ++i) {
    const Output& output = plain.outputs[i];
    const bool both = i + 1 < plain.n && shares_plain(output, plain.outputs[i + 1]);
    const Output second = both ? plain.outputs[++i] : Output{};
    const GpuError error = project_plain(launch, args.input, output, second, args.rows);
    if (error != GpuError{}) return error;
  }
  return GpuError{};
}

GpuError project_each(const Launch& launch, const ProjectArgs& args, const Group& quantised,
                      const HalfRows& tokens) {
  for (const Output& output : quantised.all()) {
    ProjectArgs one = args;
    one.n_outputs = 1;
    one.outputs[0] = output;
    const GpuError error =
        has_tiles(output.w)
            ? project_tiles(launch, output, tokens, args.rows)
            : project_decode(launch, one, {.rows = static_cast<std::byte*>(launch.workspace)});
    if (error != GpuError{}) return error;
  }
  return GpuError{};
}

GpuError project_many(const Launch& launch, const ProjectArgs& args) {
  Group quantised, plain;
  bool tiles = false;
  for (int i = 0; i < args.n_outputs; ++i) {
    const Output& output = args.outputs[static_cast<std::size_t>(i)];
    (is_plain(output.w.type) ? plain : quantised).add(output);
    tiles |= has_tiles(output.w);
  }
  const ProjectRoom room = room_of(launch, args);
  const bool by_gemm = goes_by_gemm(launch, args.rows, quantised.all(), room.weights);
  const bool plain_by_gemm = goes_by_gemm(launch, args.rows, plain.all(), room.weights);
  GpuError error{};
  if (tiles || plain_by_gemm)
    error = halve_rows(launch, args.input, args.rows, room.tokens,
                       plain_by_gemm ? room.rest : HalfRows{});
  if (error == GpuError{})
    error = by_gemm ? gemm(launch, quantised.all(), room.tokens, {}, args.rows, room.weights)
                    : project_each(launch, args, quantised, room.tokens);
  if (error == GpuError{})
    error = plain_by_gemm
                ? gemm(launch, plain.all(), room.tokens, room.rest, args.rows, room.weights)
                : project_each_plain(launch, args, plain);
  return error;
}

}  // namespace

GpuError project(const Launch& launch, const ProjectArgs& args) {
  if (args.rows > kDecodeRows) return project_many(launch, args);
  return project_decode(launch, args, {.rows = static_cast<std::byte*>(launch.workspace)});
}

}  // namespace tessera::gpu
