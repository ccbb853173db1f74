#include "base/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Nothing where there is no such file or it says "max".
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// A line "key number" of the group's memory.stat.
std::optional<std::int64_t> memory_stat(const fs::path& group, const std::string& key) {
  std::ifstream file(group / "memory.stat");
  std::string name;
  std::int64_t number = 0;
  while (file >> name >> number)
    if (name == key) return number;
  return std::nullopt;
}

// Where a version keeps its groups, and what it calls the numbers.
struct Version {
  const char* mount;
  const char* limit;
  const char* used;
  const char* cache;  // of memory.stat
};
constexpr Version kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Version kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_inactive_file"};

void limit_memory(const fs::path& group, const Version& version, std::optional<std::int64_t> limit,
                  CgroupLimits& limits) {
  if (!limit || *limit < 0) return;
  const std::int64_t used =
      number_in(group / version.used).value_or(0) - memory_stat(group, version.cache).value_or(0);
  limits.memory = std::min(limits.memory, *limit);
  limits.memory_free =
      std::min(limits.memory_free, *limit - std::clamp<std::int64_t>(used, 0, *limit));
}

void limit_processors(const fs::path& group, CgroupLimits& limits) {
  std::ifstream file(group / "cpu.max");
  std::int64_t quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return;
  const std::int64_t processors = quota / period + (quota % period > 0 ? 1 : 0);
  limits.processors = static_cast<int>(std::min<std::int64_t>(limits.processors, processors));
}

// A group and those above it. In a container whose own part of the tree alone is mounted, groups of
// the path may not be there: what is mounted then is one of them.
std::vector<fs::path> groups_of(const fs::path& mount, const std::string& path) {
  std::vector<fs::path> groups;
  const fs::path inside = fs::path(path).lexically_normal().relative_path();
  for (fs::path part = inside; !part.empty(); part = part.parent_path())
    if (std::error_code error; fs::is_directory(mount / part, error))
      groups.push_back(mount / part);
  groups.push_back(mount);
  return groups;
}

// The path of a line "4:cpu,memory:/a/b" or "0::/a/b" of /proc/self/cgroup, and its controllers.
std::pair<std::string, std::string> parse_line(const std::string& line) {
  const std::size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {"none", ""};
  return {line.substr(first + 1, second - first - 1), line.substr(second + 1)};
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto [controllers, path] = parse_line(line);
    if (controllers.empty()) {
      for (const fs::path& group : groups_of(fs::path(root + "/") / kVersion2.mount, path)) {
        limit_memory(group, kVersion2, number_in(group / kVersion2.limit), limits);
        limit_processors(group, limits);
      }
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      const auto groups = groups_of(fs::path(root + "/") / kVersion1.mount, path);
      for (const fs::path& group : groups)
        limit_memory(group, kVersion1, number_in(group / kVersion1.limit), limits);
      // The least of all above, seen from here or not.
      limit_memory(groups.front(), kVersion1,
                   memory_stat(groups.front(), "hierarchical_memory_limit"), limits);
    }
  }
  return limits;
}

}  // namespace tessera
