// GPU plug-ins, seen from the program: found, checked and opened at run time.
//
//   for (const GpuVendor& vendor : probe_gpus(folder)) ...       // `tessera devices`
//   TESSERA_ASSIGN(GpuInfo info, probe_gpu("cuda", 0, folder));
//   TESSERA_ASSIGN(auto device, make_gpu_device("cuda", {.index = 0}, folder));
//
// libtessera-VENDOR.so is looked for in `folder` where one is given, else beside the program, in
// ../lib/tessera and in ../lib. A plug-in of another build is refused (plugin_api.h), as is a
// device that its kernels do not run on. Errors are ErrorCode::unavailable, one line that says what
// is missing. An opened plug-in stays until the process ends. Any thread may call; the device that
// comes back is driven by one thread, like any other.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/gpu/plugin_api.h"

namespace tessera {

inline constexpr std::array<const char*, 2> kGpuVendors = {"cuda", "hip"};

struct GpuVendor {
  std::string vendor;
  std::string path;     // of the plug-in; empty: there is none
  std::string problem;  // why no device of it can be used; empty: see the devices
  std::vector<GpuInfo> devices;
};
std::vector<GpuVendor> probe_gpus(const std::string& folder);

// ErrorCode::unavailable where the device is not there or cannot be used.
Result<GpuInfo> probe_gpu(const std::string& vendor, int index, const std::string& folder);

// Bytes a second that the device reads from its memory, measured (a fraction of a second).
Result<double> measure_gpu_read(const std::string& vendor, int index, const std::string& folder);

Result<std::unique_ptr<Device>> make_gpu_device(const std::string& vendor,
                                                const GpuDeviceOptions& options,
                                                const std::string& folder);
Result<std::unique_ptr<GpuExperts>> make_gpu_experts(const std::string& vendor,
                                                     const GpuDeviceOptions& options,
                                                     const std::string& folder);

}  // namespace tessera
