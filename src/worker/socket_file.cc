#include "worker/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

// It is held for as long as somebody asks whether a listener answers.
constexpr auto kPatience = std::chrono::seconds(5);

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Result<SocketFileLock> SocketFileLock::take(const std::string& path) {
  const std::string folder = folder_of(path);
  Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const Deadline until = after(kPatience);
       fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;) {
    if (Clock::now() >= until)
      return Error::make(ErrorCode::unavailable,
                         "{}: another process keeps the folder {} locked; try again", path, folder);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return SocketFileLock(std::move(fd));
}

Status remove_stale(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode))
    return Error::make(ErrorCode::invalid, "{} exists and is not a socket", path);
  if (::unlink(path.c_str()) != 0) return system_error("removing " + path);
  return {};
}

SocketFile SocketFile::bound(const std::string& path) {
  SocketFile file;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return file;
  file.path_ = path;
  file.device_ = status.st_dev;
  file.number_ = status.st_ino;
  return file;
}

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  remove();
  path_ = std::exchange(other.path_, {});
  device_ = other.device_;
  number_ = other.number_;
  return *this;
}

// One who came since has found that nobody answers and put a file of its own there.
void SocketFile::remove() {
  if (path_.empty()) return;
  const Result<SocketFileLock> lock = SocketFileLock::take(path_);
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == number_)
    ::unlink(path_.c_str());
  path_.clear();
}

}  // namespace tessera::worker
