// Products of up to kDecodeRows rows (more rows: more passes) with up to four matrices.
#pragma once

#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {

// Where rows stand rounded: project_workspace() bytes. Several rows that meet Q4_K or Q6_K matrices
// are rounded here first, once for all blocks. `leave`: the product of plain matrices alone leaves
// its rows here too, for products behind it.
// `here`: so many super-blocks of each row, the first ones, stand there already (gated_supers()).
struct Rounding {
  std::byte* rows = nullptr;
  bool leave = false;
  int here = 0;
};

// Any number of rows; each weight is read once for every 8 of them.
GpuError project_decode(const Launch& launch, const ProjectArgs& args, const Rounding& rounding);

// The input's rows as products by super-blocks read them, to `out`: rounded_row_bytes() each.
// Nothing to do where they stand there already (Input::rounded).
GpuError round_rows(const Launch& launch, const Input& input, int rows, std::byte* out);

// Where every matrix is Q4_K, Q6_K or plain and columns are whole super-blocks.
bool has_project_supers(const ProjectArgs& args);
GpuError project_supers(const Launch& launch, const ProjectArgs& args, const Rounding& rounding);

// act(gate x) * up x to out[rows][stride], where gate and up are both Q4_K or both Q6_K and columns
// are whole super-blocks.
struct GatedArgs {
  Input input;
  int rows = 0;
  Matrix gate, up;
  Activation activation = Activation::silu;
  float* out = nullptr;
  std::int64_t stride = 0;
  // Of every row the first `supers` super-blocks go here, rounded, and not to `out`.
  std::byte* rounded = nullptr;
  int supers = 0;
};
// How many, where `down` meets what gate and up have made: those that blocks make whole groups of.
int gated_supers(const Launch& launch, const Matrix& gate, const Matrix& down);
bool has_gated_stream(const Input& input, const Matrix& gate, const Matrix& up);
GpuError gated_stream(const Launch& launch, const GatedArgs& args, const Rounding& rounding);

}  // namespace tessera::gpu
