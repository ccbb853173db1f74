// What crosses between the program and a GPU plug-in (libtessera-cuda.so, libtessera-hip.so).
//
// The plug-in holds everything that needs a driver and is opened at run time, so that the program
// runs where there is none. It exports one C function:
//
//   const GpuPluginApi* api = tessera_gpu_plugin();
//   if (api->version != kGpuPluginVersion || api->fingerprint != gpu_build_fingerprint()) refuse;
//   std::unique_ptr<Device> device = api->create(...);
//
// What it makes is the C++ contract Device itself: a C copy of it, of ModelSpec and of Model would
// be a second contract to keep in step, and the two are always built together. The fingerprint
// enforces that: it names the compiler, its flags and the contents of every header that this one
// reads. No exception crosses: one that is thrown in there is an error of the call, or the end of
// the device where a step has thrown it. Memory is freed on the side that allocated it (both share
// one heap). A plug-in never calls a function of the program but through GpuHost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "device/device.h"
#include "device/gpu/gpu_experts.h"

namespace tessera {

inline constexpr std::uint32_t kGpuPluginVersion = 6;

struct GpuInfo {
  char name[128];                 // "NVIDIA H200"
  char architecture[32];          // "sm_90", "gfx1030"
  char refusal[256];              // empty: usable; else why it is not
  std::int64_t memory_total = 0;  // bytes
  std::int64_t memory_free = 0;
  std::int64_t bytes_per_second = 0;  // of memory by the data sheet; 0: not known
  int multiprocessors = 0;
  // Devices of the vendor, by number, to which it hands rows (kernels/handover.h); itself too.
  std::uint64_t hands_rows_to = 0;
  bool runs = false;     // layers of one row as one kernel (kernels/run.h)
  bool unified = false;  // its memory is the machine's, which may then have less free than it says
};

// Of the program, for the plug-in.
struct GpuHost {
  std::function<void(const Model&, const TensorSlice&)> release;  // the slice was read
  std::function<Status(const Model&)> check_intact;
  std::function<void(LogLevel, const std::string&)> tell;  // a line for the log
};

struct GpuDeviceOptions {
  int index = 0;
  int load_threads = 1;      // host threads that repack weights
  double wait_seconds = 60;  // the longest wait for one step
  double load_seconds = 60;  // for a piece of a load, or at a device's end, where that is more
  bool graphs = true;        // decode steps as captured graphs
  int fail_allocation = -1;  // for tests: load()'s n-th allocation fails
  bool chained = true;       // kernels begin while the one before them ends, where the GPU can

  double longest_wait() const { return std::max(wait_seconds, load_seconds); }
};

struct GpuPluginApi {
  std::uint32_t version;
  const char* fingerprint;
  const char* vendor;  // "cuda", "hip": the first part of its devices' names
  // Devices of the machine, or -1 with the reason in `why`.
  int (*count)(char* why, std::size_t why_bytes);
  void (*describe)(int index, GpuInfo* info);
  // Bytes a second that a kernel reads which does nothing else; 0 where that failed.
  double (*read_speed)(int index);
  // nullptr with the reason in `why`.
  Device* (*create)(const GpuDeviceOptions* options, const GpuHost* host, char* why,
                    std::size_t why_bytes);
  GpuExperts* (*create_experts)(const GpuDeviceOptions* options, const GpuHost* host, char* why,
                                std::size_t why_bytes);
};

using GpuPluginEntry = const GpuPluginApi* (*)();
inline constexpr const char* kGpuPluginEntry = "tessera_gpu_plugin";

// The same text in the program and in every plug-in that was built with it.
const char* gpu_build_fingerprint();

}  // namespace tessera
