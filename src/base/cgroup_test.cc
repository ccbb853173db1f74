#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

// /proc and /sys of a machine that is not.
class Tree {
 public:
  Tree() : root_(testing::TempDir() + "cgroup_test_" + std::to_string(::getpid())) {}
  ~Tree() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = root_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void group(const std::string& path, std::int64_t limit, std::int64_t used,
             std::int64_t cache) const {
    write(path + "/memory.max", limit < 0 ? "max\n" : std::to_string(limit) + "\n");
    write(path + "/memory.current", std::to_string(used) + "\n");
    write(path + "/memory.stat",
          "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 7\n");
  }
  CgroupLimits limits() const { return cgroup_limits(root_); }

 private:
  std::string root_;
};

TEST(Cgroup, NothingIsLimitedWithoutGroups) {
  const Tree tree;
  EXPECT_EQ(tree.limits().memory, kNone);
  EXPECT_EQ(tree.limits().memory_free, kNone);
  tree.write("proc/self/cgroup", "no such line\n0::/a\n");
  EXPECT_EQ(tree.limits().memory, kNone);
  EXPECT_EQ(tree.limits().processors, std::numeric_limits<int>::max());
}

TEST(Cgroup, TakesTheLeastOfAllGroupsAbove) {
  const Tree tree;
  tree.write("proc/self/cgroup", "0::/slice/service/part\n");
  tree.group("sys/fs/cgroup/slice", 300 * kMiB, 100 * kMiB, 0);
  tree.group("sys/fs/cgroup/slice/service", -1, 90 * kMiB, 0);
  tree.group("sys/fs/cgroup/slice/service/part", 400 * kMiB, 80 * kMiB, 30 * kMiB);
  EXPECT_EQ(tree.limits().memory, 300 * kMiB);
  EXPECT_EQ(tree.limits().memory_free, 200 * kMiB);
  // The group that has least left need not be the smallest.
  tree.group("sys/fs/cgroup/slice/service/part", 310 * kMiB, 250 * kMiB, 30 * kMiB);
  EXPECT_EQ(tree.limits().memory, 300 * kMiB);
  EXPECT_EQ(tree.limits().memory_free, 90 * kMiB);
  // More taken than the limit is none left; a neighbour's limit is not ours.
  tree.group("sys/fs/cgroup/slice/service/part", 310 * kMiB, 500 * kMiB, 0);
  tree.group("sys/fs/cgroup/slice/other", 10 * kMiB, 0, 0);
  EXPECT_EQ(tree.limits().memory, 300 * kMiB);
  EXPECT_EQ(tree.limits().memory_free, 0);
}

TEST(Cgroup, TakesTheLeastShareOfTime) {
  const Tree tree;
  tree.write("proc/self/cgroup", "0::/slice/part\n");
  tree.write("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  tree.write("sys/fs/cgroup/slice/part/cpu.max", "max 100000\n");
  EXPECT_EQ(tree.limits().processors, 2);
  tree.write("sys/fs/cgroup/slice/part/cpu.max", "10000 100000\n");
  EXPECT_EQ(tree.limits().processors, 1);
}

// In a container the mount is the process's own group, whatever the path says.
TEST(Cgroup, LooksAtWhatIsMountedWhereThePathIsNot) {
  const Tree tree;
  tree.group("sys/fs/cgroup", 64 * kMiB, 4 * kMiB, 0);
  for (const char* path : {"0::/docker/0123\n", "0::/\n", "0::/../sibling\n", "0::/../..\n"}) {
    tree.write("proc/self/cgroup", path);
    EXPECT_EQ(tree.limits().memory, 64 * kMiB) << path;
    EXPECT_EQ(tree.limits().memory_free, 60 * kMiB) << path;
  }
}

TEST(Cgroup, KnowsVersion1) {
  const Tree tree;
  tree.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n");
  const std::string own = "sys/fs/cgroup/memory/a/b/";
  tree.write(own + "memory.limit_in_bytes", "9223372036854771712\n");
  tree.write(own + "memory.usage_in_bytes", std::to_string(50 * kMiB));
  tree.write(own + "memory.stat", "cache 1\nhierarchical_memory_limit " +
                                      std::to_string(200 * kMiB) + "\ntotal_inactive_file " +
                                      std::to_string(20 * kMiB) + "\n");
  // Of a group that is not to be seen.
  EXPECT_EQ(tree.limits().memory, 200 * kMiB);
  EXPECT_EQ(tree.limits().memory_free, 170 * kMiB);
  // And one that is, with what others take of it.
  tree.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(200 * kMiB));
  tree.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(120 * kMiB));
  EXPECT_EQ(tree.limits().memory, 200 * kMiB);
  EXPECT_EQ(tree.limits().memory_free, 80 * kMiB);
}

}  // namespace
}  // namespace tessera
