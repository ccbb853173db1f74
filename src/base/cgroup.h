// What control groups (version 2, and the memory of version 1) leave to this process.
//
//   const CgroupLimits limits = cgroup_limits();
//   bytes = std::min(bytes, limits.memory_free);
//
// A limit of any group above holds for the process too, so each number is the least along the path
// from its group to the root, as far as that is to be seen from here. What is not limited, or
// cannot be read, is the largest number there is. Any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace tessera {

struct CgroupLimits {
  std::int64_t memory = std::numeric_limits<std::int64_t>::max();  // bytes
  // Of them, what the processes of the group that has least left do not take yet; page cache that
  // was not used for a while gives way, and counts as free.
  std::int64_t memory_free = std::numeric_limits<std::int64_t>::max();
  int processors = std::numeric_limits<int>::max();  // worth of time
};

// `root`: in front of /proc and /sys, for tests.
CgroupLimits cgroup_limits(const std::string& root = "");

}  // namespace tessera
