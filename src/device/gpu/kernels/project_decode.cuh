// Products of up to kDecodeRows rows (more rows: more passes) with up to four matrices.
#pragma once

#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {

// Any number of rows; each weight is read once for every 8 of them.
GpuError project_decode(const Launch& launch, const ProjectArgs& args);

// Where every matrix is Q4_K, Q6_K or plain and columns are whole super-blocks.
bool has_project_supers(const ProjectArgs& args);
GpuError project_supers(const Launch& launch, const ProjectArgs& args);

}  // namespace tessera::gpu
