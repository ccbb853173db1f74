#include "cli/machine_file.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/loading.h"

namespace tessera::cli {
namespace {

std::string speed_path() {
  return cache_folder() + "/machine.json";
}

// "model name : ..." of the first processor.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':')));
  return "unknown";
}

nlohmann::json key_of(int threads, cpu::Isa isa) {
  return {{"processor", processor_name()}, {"threads", threads}, {"isa", cpu::isa_name(isa)}};
}

nlohmann::json read_all() {
  std::ifstream file(speed_path());
  nlohmann::json all = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return all.is_array() ? all : nlohmann::json::array();
}

}  // namespace

MeasuredSpeed measured_speed(const MachineSpeed& speed, int threads) {
  const double op = speed.int8_op_per_s > 0.0 ? speed.int8_op_per_s : speed.f32_flop_per_s;
  return {.read_bytes_per_s = speed.read_bytes_per_s, .op_per_s = op * threads};
}

void save_speed(const MeasuredSpeed& speed, int threads, cpu::Isa isa) {
  const nlohmann::json key = key_of(threads, isa);
  nlohmann::json all = nlohmann::json::array();
  for (const nlohmann::json& entry : read_all())
    if (entry.is_object() && entry.value("key", nlohmann::json()) != key) all.push_back(entry);
  all.push_back(
      {{"key", key}, {"read_bytes_per_s", speed.read_bytes_per_s}, {"op_per_s", speed.op_per_s}});
  std::error_code error;
  std::filesystem::create_directories(cache_folder(), error);
  const std::string path = speed_path();
  std::ofstream(path + ".new") << all.dump(2) << "\n";
  std::filesystem::rename(path + ".new", path, error);
}

std::optional<MeasuredSpeed> saved_speed(int threads, cpu::Isa isa) {
  const nlohmann::json key = key_of(threads, isa);
  for (const nlohmann::json& entry : read_all()) {
    if (!entry.is_object() || entry.value("key", nlohmann::json()) != key) continue;
    const auto number = [&](const char* name) {
      const auto found = entry.find(name);
      return found != entry.end() && found->is_number() ? found->get<double>() : 0.0;
    };
    const MeasuredSpeed speed{number("read_bytes_per_s"), number("op_per_s")};
    if (speed.read_bytes_per_s > 0.0 && speed.op_per_s > 0.0) return speed;
  }
  return std::nullopt;
}

}  // namespace tessera::cli
