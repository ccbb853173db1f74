#include "device/gpu/plugin.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>

#include "base/log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> search_folders(const std::string& folder) {
  if (!folder.empty()) return {folder};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path beside = program.parent_path();
  return {beside, beside / "../lib/tessera", beside / "../lib"};
}

std::string file_name(const std::string& vendor) {
  return "libtessera-" + vendor + ".so";
}

// The plug-in's file; empty where there is none.
std::string find_plugin(const std::string& vendor, const std::string& folder) {
  for (const fs::path& place : search_folders(folder)) {
    const fs::path file = place / file_name(vendor);
    std::error_code error;
    if (fs::is_regular_file(file, error)) return fs::weakly_canonical(file, error).string();
  }
  return {};
}

Error unavailable(const std::string& text) {
  return Error::make(ErrorCode::unavailable, "{}", text);
}

Error not_found(const std::string& vendor, const std::string& folder) {
  if (!folder.empty())
    return Error::make(ErrorCode::unavailable, "no {} in {}, which --gpu-plugins names",
                       file_name(vendor), folder);
  return Error::make(ErrorCode::unavailable,
                     "no {} beside the program, in ../lib/tessera or in ../lib: build it {} "
                     "(docs/gpu.md, Building), or name its folder by --gpu-plugins",
                     file_name(vendor),
                     vendor == "hip" ? "with -DTESSERA_HIP=ON and hipcc" : "with nvcc");
}

Result<const GpuPluginApi*> open_plugin(const std::string& vendor, const std::string& folder) {
  const std::string path = find_plugin(vendor, folder);
  if (path.empty()) return not_found(vendor, folder);
  // Local, so that the symbols of two vendors' libraries cannot meet; never closed, because a
  // driver leaves threads behind.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();
    return unavailable(why != nullptr ? why : path + ": cannot be opened");
  }
  const auto entry = reinterpret_cast<GpuPluginEntry>(dlsym(library, kGpuPluginEntry));
  if (entry == nullptr) return unavailable(path + ": is no plug-in of Tessera");
  const GpuPluginApi* api = entry();
  if (api == nullptr || api->version != kGpuPluginVersion ||
      std::string_view(api->fingerprint) != gpu_build_fingerprint())
    return unavailable(path +
                       ": comes from another build; use the one that was built with this "
                       "program");
  return api;
}

Result<int> count_devices(const GpuPluginApi& api) {
  std::array<char, 512> why{};
  const int count = api.count(why.data(), why.size());
  if (count < 0) return unavailable(why.data());
  return count;
}

GpuHost host_functions() {
  return {.release =
              [](const Model& model, const TensorSlice& slice) {
                const auto begin = static_cast<std::uint64_t>(slice.data - slice.tensor->data);
                const std::int64_t bytes =
                    (slice.matrices - 1) * slice.matrix_stride + slice.rows * slice.row_stride;
                model.file().release(*slice.tensor, begin, static_cast<std::uint64_t>(bytes));
              },
          .check_intact = [](const Model& model) { return model.file().check_intact(); },
          .tell = [](LogLevel level, const std::string& line) { log_at(level, "{}", line); }};
}

}  // namespace

std::vector<GpuVendor> probe_gpus(const std::string& folder) {
  std::vector<GpuVendor> vendors;
  for (const char* name : kGpuVendors) {
    GpuVendor& vendor = vendors.emplace_back();
    vendor.vendor = name;
    vendor.path = find_plugin(name, folder);
    const Result<const GpuPluginApi*> api = open_plugin(name, folder);
    if (!api) {
      vendor.problem = api.error().message;
      continue;
    }
    const Result<int> count = count_devices(**api);
    if (!count) {
      vendor.problem = count.error().message;
      continue;
    }
    if (*count == 0) vendor.problem = "the driver knows no device";
    for (int i = 0; i < *count; ++i) (*api)->describe(i, &vendor.devices.emplace_back());
  }
  return vendors;
}

Result<GpuInfo> probe_gpu(const std::string& vendor, int index, const std::string& folder) {
  const std::string name = fmt::format("{}:{}", vendor, index);
  Result<const GpuPluginApi*> api = open_plugin(vendor, folder);
  if (!api) return std::move(api).error().in(name);
  Result<int> count = count_devices(**api);
  if (!count) return std::move(count).error().in(name);
  if (index >= *count)
    return Error::make(ErrorCode::unavailable, "{}: is not there; the driver knows {} device{}",
                       name, *count, *count == 1 ? "" : "s");
  GpuInfo info;
  (*api)->describe(index, &info);
  if (info.refusal[0] != '\0') return unavailable(info.refusal).in(name);
  return info;
}

Result<double> measure_gpu_read(const std::string& vendor, int index, const std::string& folder) {
  TESSERA_TRY(probe_gpu(vendor, index, folder));
  TESSERA_ASSIGN(const GpuPluginApi* api, open_plugin(vendor, folder));
  const double speed = api->read_speed(index);
  if (speed <= 0.0)
    return Error::make(ErrorCode::internal, "{}:{}: its memory could not be measured", vendor,
                       index);
  return speed;
}

namespace {

// What `create` of the vendor's plug-in makes.
template <typename Made>
Result<std::unique_ptr<Made>> make(
    const std::string& vendor, const GpuDeviceOptions& options, const std::string& folder,
    Made* (*GpuPluginApi::*create)(const GpuDeviceOptions*, const GpuHost*, char*, std::size_t)) {
  TESSERA_TRY(probe_gpu(vendor, options.index, folder));
  TESSERA_ASSIGN(const GpuPluginApi* api, open_plugin(vendor, folder));
  const GpuHost host = host_functions();
  std::array<char, 512> why{};
  std::unique_ptr<Made> made((api->*create)(&options, &host, why.data(), why.size()));
  if (made == nullptr)
    return unavailable(why.data()).in(fmt::format("{}:{}", vendor, options.index));
  return made;
}

}  // namespace

Result<std::unique_ptr<Device>> make_gpu_device(const std::string& vendor,
                                                const GpuDeviceOptions& options,
                                                const std::string& folder) {
  return make(vendor, options, folder, &GpuPluginApi::create);
}

Result<std::unique_ptr<GpuExperts>> make_gpu_experts(const std::string& vendor,
                                                     const GpuDeviceOptions& options,
                                                     const std::string& folder) {
  return make(vendor, options, folder, &GpuPluginApi::create_experts);
}

}  // namespace tessera
