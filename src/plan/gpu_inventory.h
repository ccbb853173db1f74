// A GPU of this process as a device of the plan, from what its driver says. Pure functions.
//
// A GPU without memory of its own shares the machine's: it counts in the same memory as the CPU
// devices and the workers here, and may use what is free there, whatever its driver or a person
// says. A driver may also report more free memory than there is in all. Of what is free it gets
// some that no plan counts: kernels come when they are first used, and graphs when they are
// captured.
#pragma once

#include "device/gpu/plugin.h"
#include "plan/plan.h"

namespace tessera {

// `machine`: the memory of this machine; so many threads repack the GPU's
// weights, and compute experts away from it.
DeviceInventory gpu_inventory(const DeviceName& name, const GpuInfo& info,
                              const DeviceInventory& machine, int threads);

// What a device may use where a person asks for so many bytes.
std::int64_t allowed_budget(const DeviceInventory& device, std::int64_t asked);

}  // namespace tessera
