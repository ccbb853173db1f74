#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <thread>

#include "base/log.h"
#include "server/listener.h"
#include "server/mailbox.h"

namespace tessera::server {

namespace asio = boost::asio;

class Server::Impl {
 public:
  Impl(ServerOptions options, MetricsRegistry& metrics)
      : options_(std::move(options)),
        workers_(static_cast<std::size_t>(std::max(options_.workers, 1))),
        mailbox_(std::make_shared<Mailbox>(context_)),
        service_(options_, executors(), metrics),
        listener_(context_, options_, service_, [this] { set(at_rest_); }) {}

  Status listen() {
    TESSERA_TRY(listener_.listen());
    thread_ = std::thread([this] {
      listener_.accept();
      context_.run();
    });
    return {};
  }

  ~Impl() {
    if (thread_.joinable()) drain(std::chrono::milliseconds(0));
  }

  std::uint16_t port() const { return listener_.port(); }

  void set_ready(ServedModel model, Engine& engine) {
    auto shared = std::make_shared<const ServedModel>(std::move(model));
    mailbox_->post([this, shared, &engine] { service_.set_ready(shared, engine); });
  }

  void drain(std::chrono::milliseconds grace) {
    if (drain_begun_.exchange(true)) return wait();
    on_io([this] {
      service_.set_draining();
      listener_.drain();
    });
    if (!wait_rest(grace)) {
      on_io([this] { listener_.shut_down(); });
      // Time for the last words to be taken; a client that does not read them is cut off.
      wait_rest(std::chrono::seconds(2));
    }
    on_io([this] { listener_.close_all(); });
    stop();
    set(stopped_);
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_; });
  }

 private:
  Executors executors() {
    return {.io = [mailbox = mailbox_](Task task) { mailbox->post(std::move(task)); },
            .worker = [this](Task task) { asio::post(workers_, std::move(task)); }};
  }

  // Runs a task on the I/O thread and waits for it.
  void on_io(Task task) {
    bool done = false;
    mailbox_->post([&] {
      task();
      set(done);
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done; });
  }

  bool wait_rest(std::chrono::milliseconds most) {
    on_io([this] {
      const std::lock_guard lock(mutex_);
      at_rest_ = listener_.at_rest();
    });
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return at_rest_; });
  }

  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  void stop() {
    mailbox_->close();
    workers_.stop();
    workers_.join();
    work_.reset();
    context_.stop();
    thread_.join();
  }

  ServerOptions options_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ =
      asio::make_work_guard(context_);
  asio::thread_pool workers_;
  std::shared_ptr<Mailbox> mailbox_;
  Service service_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool at_rest_ = false;
  std::atomic<bool> drain_begun_ = false;
  bool stopped_ = false;
  Listener listener_;
  std::thread thread_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, MetricsRegistry& metrics) {
  auto impl = std::make_unique<Impl>(std::move(options), metrics);
  TESSERA_TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::uint16_t Server::port() const {
  return impl_->port();
}
void Server::set_ready(ServedModel model, Engine& engine) {
  impl_->set_ready(std::move(model), engine);
}
void Server::drain(std::chrono::milliseconds grace) {
  impl_->drain(grace);
}
void Server::wait() {
  impl_->wait();
}

}  // namespace tessera::server
