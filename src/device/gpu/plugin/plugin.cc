// The plug-in's one exported function, and what it offers.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string_view>

#include "device/gpu/hip_targets.h"
#include "device/gpu/plugin/driver.h"
#include "device/gpu/plugin/gpu_device.h"
#include "device/gpu/plugin/gpu_expert_set.h"
#include "device/gpu/plugin/read_speed.h"

namespace tessera::gpu {
namespace {

void put(std::string_view text, char* to, std::size_t bytes) {
  const std::size_t n = std::min(text.size(), bytes - 1);
  std::copy_n(text.data(), n, to);
  to[n] = '\0';
}

// What throws in here is no exception of the program's. Without memory the reason may not be put
// together either.
template <typename Function>
void caught(Function function, char* why, std::size_t why_bytes) {
  try {
    function();
  } catch (const std::exception& error) {
    put(error.what(), why, why_bytes);
  }
}

int count_devices(char* why, std::size_t why_bytes) {
  int devices = 0;
  const auto error = GPU(GetDeviceCount)(&devices);
  if (error == GPU(Success)) return devices;
#if !defined(TESSERA_HIP)
  if (error == cudaErrorNoDevice) return 0;
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    put("no NVIDIA driver is installed", why, why_bytes);
    return -1;
  }
#endif
  put(fmt::format("{} ({})", GPU(GetErrorString)(error), GPU(GetErrorName)(error)), why, why_bytes);
  return -1;
}

int count(char* why, std::size_t why_bytes) {
  int devices = -1;
  caught([&] { devices = count_devices(why, why_bytes); }, why, why_bytes);
  return devices;
}

#if defined(TESSERA_HIP)
using Properties = hipDeviceProp_t;
std::string architecture(const Properties& properties) {
  return properties.gcnArchName;
}
std::string refusal(const Properties& properties) {
  return hip_refusal(TESSERA_HIP_TARGETS, properties.gcnArchName);
}
std::int64_t bytes_per_second(int index) {
  int clock_khz = 0, bits = 0;
  static_cast<void>(hipDeviceGetAttribute(&clock_khz, hipDeviceAttributeMemoryClockRate, index));
  static_cast<void>(hipDeviceGetAttribute(&bits, hipDeviceAttributeMemoryBusWidth, index));
  return std::int64_t{2000} * clock_khz * bits / 8;
}
#else
using Properties = cudaDeviceProp;
std::string architecture(const Properties& properties) {
  return fmt::format("sm_{}{}", properties.major, properties.minor);
}
std::string refusal(const Properties& properties) {
  if (properties.major < 8)
    return fmt::format("compute capability {}.{}; 8.0 or higher is needed", properties.major,
                       properties.minor);
  int compiled_for = 0;
  const auto error = static_cast<GPU(Error_t)>(find_code(compiled_for));
  if (error == GPU(Success)) return {};
  static_cast<void>(GPU(GetLastError)());
  // Code for 8.0 is kept in a form that every later GPU takes; Hopper has its own.
  return fmt::format(
      "this build has no kernels for compute capability {}.{} ({}): build it with {} among "
      "-DTESSERA_CUDA_TARGETS",
      properties.major, properties.minor, GPU(GetErrorString)(error),
      properties.major == 9 ? "90a" : "80");
}
std::int64_t bytes_per_second(int index) {
  int clock_khz = 0, bits = 0;
  static_cast<void>(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index));
  static_cast<void>(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, index));
  return std::int64_t{2000} * clock_khz * bits / 8;
}
#endif

// Whether kernels may begin while the one before them ends.
// Older code does not wait in a kernel for the one before, whatever the GPU is.
bool chains() {
  int compiled_for = 0;
  return find_code(compiled_for) == GPU(Success) && compiled_for >= 90;
}

std::uint64_t hands_rows_to(int index) {
  int devices = 0;
  if (!hands_over() || GPU(GetDeviceCount)(&devices) != GPU(Success)) return 0;
  std::uint64_t reached = 0;
  for (int peer = 0; peer < std::min(devices, 64); ++peer) {
    int reaches = peer == index ? 1 : 0;
    if (reaches == 0) static_cast<void>(GPU(DeviceCanAccessPeer)(&reaches, index, peer));
    reached |= std::uint64_t{reaches != 0} << peer;
  }
  return reached;
}

void fill_info(int index, GpuInfo* info) {
  *info = {};
  Properties properties{};
  auto error = GPU(GetDeviceProperties)(&properties, index);
  std::size_t free = 0, total = 0;
  if (error == GPU(Success)) error = GPU(SetDevice)(index);
  if (error == GPU(Success)) error = GPU(MemGetInfo)(&free, &total);
  put(properties.name, info->name, sizeof(info->name));
  put(architecture(properties), info->architecture, sizeof(info->architecture));
  info->memory_free = static_cast<std::int64_t>(free);
  info->memory_total = static_cast<std::int64_t>(total);
  info->multiprocessors = properties.multiProcessorCount;
  info->unified = properties.integrated != 0;
  info->bytes_per_second = bytes_per_second(index);
  const std::string problem =
      error == GPU(Success) ? refusal(properties) : std::string(GPU(GetErrorString)(error));
  put(problem, info->refusal, sizeof(info->refusal));
  if (!problem.empty()) return;
  info->hands_rows_to = hands_rows_to(index);
  info->runs = has_runs({.chained = chains(), .multiprocessors = info->multiprocessors});
}

void describe(int index, GpuInfo* info) {
  caught([&] { fill_info(index, info); }, info->refusal, sizeof(info->refusal));
}

double speed_of(int index) {
  char why[64];
  double speed = 0.0;
  caught([&] { speed = read_speed(index); }, why, sizeof(why));
  return speed;
}

template <typename Made>
Made* make(const GpuDeviceOptions* options, const GpuHost* host, char* why, std::size_t why_bytes) {
  GpuInfo info;
  describe(options->index, &info);
  if (info.refusal[0] != '\0') {
    put(info.refusal, why, why_bytes);
    return nullptr;
  }
  return std::make_unique<Made>(
             fmt::format("{}:{}", TESSERA_GPU_VENDOR, options->index), *options, *host,
             GpuTraits{
                 .multiprocessors = info.multiprocessors, .chained = chains(), .gemm = has_gemm()})
      .release();
}

template <typename Made, typename Base>
Base* create(const GpuDeviceOptions* options, const GpuHost* host, char* why,
             std::size_t why_bytes) {
  Base* made = nullptr;
  caught([&] { made = make<Made>(options, host, why, why_bytes); }, why, why_bytes);
  return made;
}

}  // namespace
}  // namespace tessera::gpu

extern "C" __attribute__((visibility("default"))) const tessera::GpuPluginApi*
tessera_gpu_plugin() {
  static const tessera::GpuPluginApi api = {
      .version = tessera::kGpuPluginVersion,
      .fingerprint = tessera::gpu_build_fingerprint(),
      .vendor = TESSERA_GPU_VENDOR,
      .count = tessera::gpu::count,
      .describe = tessera::gpu::describe,
      .read_speed = tessera::gpu::speed_of,
      .create = tessera::gpu::create<tessera::gpu::GpuDevice, tessera::Device>,
      .create_experts = tessera::gpu::create<tessera::gpu::GpuExpertSet, tessera::GpuExperts>};
  return &api;
}
