// What this process, or another one by its number, has of the system, for tests that nothing is
// left over.
#pragma once

#include <dirent.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::testing {

inline constexpr int kThisProcess = 0;

inline std::string about(int pid, const char* what) {
  return "/proc/" + (pid == kThisProcess ? "self" : std::to_string(pid)) + what;
}

inline int entries_of(const std::string& path) {
  int count = 0;
  DIR* folder = ::opendir(path.c_str());
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count;
}

inline int open_descriptors(int pid = kThisProcess) {
  return entries_of(about(pid, "/fd")) - (pid == kThisProcess ? 1 : 0);  // the folder's own
}

inline int open_sockets(int pid) {
  int count = 0;
  std::error_code gone;  // one that is closed meanwhile
  for (const auto& entry : std::filesystem::directory_iterator(about(pid, "/fd")))
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:") ? 1 : 0;
  return count;
}

inline int running_threads(int pid = kThisProcess) {
  return entries_of(about(pid, "/task"));
}

inline std::vector<int> child_processes(int pid = kThisProcess) {
  std::vector<int> children;
  const std::string threads = about(pid, "/task/");
  DIR* folder = ::opendir(threads.c_str());
  while (const dirent* entry = ::readdir(folder)) {
    std::ifstream file(threads + entry->d_name + "/children");
    for (int child = 0; file >> child;) children.push_back(child);
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

inline int shared_segments(int pid = kThisProcess) {
  std::ifstream maps(about(pid, "/maps"));
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:") != std::string::npos ? 1 : 0;
  return count;
}

inline long resident_kib(int pid = kThisProcess) {
  std::ifstream file(about(pid, "/statm"));
  long pages = 0;
  file >> pages >> pages;
  return pages * 4;
}

struct ProcessCounts {
  explicit ProcessCounts(int pid = kThisProcess)
      : descriptors(open_descriptors(pid)),
        children(child_processes(pid).size()),
        segments(shared_segments(pid)),
        memory_kib(resident_kib(pid)) {}

  int descriptors;
  std::size_t children;
  int segments;
  long memory_kib;
};

}  // namespace tessera::testing
