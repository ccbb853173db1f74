// Mailbox: posts tasks to an io_context from any thread for as long as it is open, so that those
// who hold one need not outlive, or be outlived by, the context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <utility>

#include "server/executors.h"

namespace tessera::server {

class Mailbox {
 public:
  explicit Mailbox(boost::asio::io_context& context) : context_(&context) {}

  void post(Task task) {
    const std::lock_guard lock(mutex_);
    if (context_) boost::asio::post(*context_, std::move(task));
  }
  void close() {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex mutex_;
  boost::asio::io_context* context_;
};

}  // namespace tessera::server
