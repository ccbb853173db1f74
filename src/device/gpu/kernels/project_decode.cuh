// Products of up to kDecodeRows rows (more rows: more passes) with up to four matrices.
#pragma once

#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {

// Any number of rows; each weight is read once for every 8 of them.
GpuError project_decode(const Launch& launch, const ProjectArgs& args);

}  // namespace tessera::gpu
