// The GPU that tests run on, if there is one: the first that a plug-in of this build can use. Where
// there is none, GPU_OR_SKIP() skips the test with the reason.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/gpu/plugin.h"
#include "plan/placement.h"

namespace tessera::testing {

// Where the program and its plug-ins lie, above the tests.
inline std::string program_folder() {
  const auto tests = std::filesystem::read_symlink("/proc/self/exe");
  return tests.parent_path().parent_path().string();
}

// The environment may name another one.
inline std::string plugin_folder() {
  if (const char* folder = std::getenv("GPU_TEST_PLUGINS")) return folder;
  return program_folder();
}

struct TestGpu {
  std::optional<DeviceName> name;
  std::string reason;  // why there is none
};

inline TestGpu find_test_gpu() {
  TestGpu gpu;
  for (const GpuVendor& vendor : probe_gpus(plugin_folder())) {
    for (std::size_t i = 0; i < vendor.devices.size(); ++i) {
      const std::string text = vendor.vendor + ":" + std::to_string(i);
      if (vendor.devices[i].refusal[0] == '\0') {
        gpu.name = *parse_device_name(text);
        return gpu;
      }
      gpu.reason += text + ": " + vendor.devices[i].refusal + "; ";
    }
    if (!vendor.problem.empty()) gpu.reason += vendor.vendor + ": " + vendor.problem + "; ";
  }
  return gpu;
}

inline const TestGpu& test_gpu() {
  static const TestGpu gpu = find_test_gpu();
  return gpu;
}

inline Placement gpu_placement() {
  Placement placement;
  placement.devices = {*test_gpu().name};
  placement.gpu_plugins = plugin_folder();
  return placement;
}

// The first `count` GPUs of the tested one's kind, from it on; nothing where there are fewer.
inline std::vector<DeviceName> gpus(int count) {
  std::vector<DeviceName> names;
  if (!test_gpu().name) return names;
  for (int i = 0; i < count; ++i) {
    DeviceName name = *test_gpu().name;
    name.team = *name.team + i;
    const auto info = probe_gpu(device_kind_name(name.kind), *name.team, plugin_folder());
    if (!info || info->refusal[0] != '\0') return {};
    names.push_back(name);
  }
  return names;
}

// Whether the GPU is one that is emulated, which takes about a second for a step of a few rows.
inline bool emulated() {
  const DeviceName& name = *test_gpu().name;
  const auto info = probe_gpu(device_kind_name(name.kind), *name.team, plugin_folder());
  return info && std::string_view(info->name) == "emulated";
}

// Of its memory; of one that is emulated, less what is pinned of the host's.
inline std::int64_t free_bytes() {
  const auto info =
      probe_gpu(device_kind_name(test_gpu().name->kind), *test_gpu().name->team, plugin_folder());
  EXPECT_TRUE(info);
  return info ? info->memory_free : 0;
}

// Whether the expert that the device was asked for has come.
inline bool moved_in_time(Device& device) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < end) {
    const Result<bool> moved = device.expert_replaced();
    EXPECT_TRUE(moved) << moved.error().message;
    if (!moved || *moved) return static_cast<bool>(moved);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

#define GPU_OR_SKIP() \
  if (!test_gpu().name) GTEST_SKIP() << "no GPU to test on: " << test_gpu().reason

}  // namespace tessera::testing
