// What this process has of the system, for tests that nothing is left over.
#pragma once

#include <dirent.h>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::testing {

inline int entries_of(const char* path) {
  int count = 0;
  DIR* folder = ::opendir(path);
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count;
}

inline int open_descriptors() {
  return entries_of("/proc/self/fd") - 1;  // the folder's own
}

inline int running_threads() {
  return entries_of("/proc/self/task");
}

inline std::vector<int> child_processes() {
  std::vector<int> children;
  DIR* folder = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(folder)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/children");
    for (int pid = 0; file >> pid;) children.push_back(pid);
  }
  ::closedir(folder);
  return children;
}

// 0: none.
inline int first_child() {
  const std::vector<int> children = child_processes();
  return children.empty() ? 0 : children.front();
}

// The child in whose command line there is the word, or is not; 0: none.
inline int child_process(bool has, const std::string& word) {
  for (const int pid : child_processes()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    bool found = false;
    for (std::string one; std::getline(file, one, '\0');) found = found || one == word;
    if (found == has) return pid;
  }
  return 0;
}

inline int shared_segments() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:") != std::string::npos ? 1 : 0;
  return count;
}

inline long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0;
  file >> pages >> pages;
  return pages * 4;
}

struct ProcessCounts {
  int descriptors = open_descriptors();
  std::size_t children = child_processes().size();
  int segments = shared_segments();
  long memory_kib = resident_kib();
};

}  // namespace tessera::testing
