// SocketFile: the file at which a worker listens, so that two who start or end at the same time do
// not remove each other's.
//
//   TESSERA_ASSIGN(const SocketFileLock lock, SocketFileLock::take(path));
//   ... is somebody there? remove_stale(path); bind(); ...
//   file = SocketFile::bound(path);              // removed with the object, if it is still this
//   one
//
// The lock is one of the folder (flock), so nothing of it stays behind; where the folder cannot be
// read there is none. Threads: any.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "worker/fd.h"

namespace tessera::worker {

class SocketFileLock {
 public:
  // Errors: unavailable where another process holds it for long.
  static Result<SocketFileLock> take(const std::string& path);

 private:
  explicit SocketFileLock(Fd folder) : folder_(std::move(folder)) {}
  Fd folder_;
};

// Removes a socket's file, and nothing else. With the lock.
Status remove_stale(const std::string& path);

class SocketFile {
 public:
  SocketFile() = default;  // none
  // Of the file that bind() has just made. With the lock.
  static SocketFile bound(const std::string& path);
  SocketFile(SocketFile&& other) noexcept { *this = std::move(other); }
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile() { remove(); }

 private:
  void remove();

  std::string path_;  // empty: none
  dev_t device_ = 0;
  ino_t number_ = 0;
};

}  // namespace tessera::worker
