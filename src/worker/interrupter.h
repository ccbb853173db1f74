// Interrupter: ends what another thread does over a socket, while that makes, connects or attaches
// it.
//
//   interrupter.watch(fd);     // the working thread, as soon as there is a socket
//   ...                        // connect(), attach_client(), ...: fails soon after interrupt()
//   interrupter.forget();      // done with it, whoever owns the socket by now
//
// Any thread. The socket may be closed meanwhile: what is kept is a descriptor of its own.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <mutex>

#include "worker/fd.h"

namespace tessera::worker {

class Interrupter {
 public:
  // Instead of the one before. Shut down at once where interrupt() was called already.
  void watch(int fd) {
    const std::lock_guard lock(mutex_);
    socket_ = Fd();
    socket_ = Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    // Without a descriptor of its own it could not end it later: then it ends now.
    if (interrupted_ || !socket_) shut(fd);
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    socket_.reset();
  }
  // For good.
  void interrupt() {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (socket_) shut(socket_.get());
  }
  bool interrupted() const {
    const std::lock_guard lock(mutex_);
    return interrupted_;
  }

 private:
  static void shut(int fd) { (void)::shutdown(fd, SHUT_RDWR); }

  mutable std::mutex mutex_;
  Fd socket_;
  bool interrupted_ = false;
};

}  // namespace tessera::worker
