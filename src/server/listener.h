// Listener: accepts connections and keeps those that are open, up to a limit. I/O thread only.
//
// At the limit the connection that has been idle longest makes room; when none is idle the new one
// is told 503 and closed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <unordered_set>

#include "base/result.h"
#include "server/connection.h"

namespace tessera::server {

class Listener {
 public:
  Listener(boost::asio::io_context& context, const ServerOptions& options, Service& service,
           std::function<void()> on_rest);

  Status listen();
  std::uint16_t port() const { return port_; }
  void accept();

  // From now on each connection closes after its answer. New ones are accepted, so that who asks
  // is told that the server ends.
  void drain();
  // Whether the answers that were in work then have ended; their last end calls `on_rest`.
  bool at_rest() const { return finishing_.empty(); }
  void shut_down();  // answers in work end with an error
  void close_all();  // and no new connections

 private:
  Result<boost::asio::ip::tcp::endpoint> resolve() const;
  void on_accept(const boost::system::error_code& ec, boost::asio::ip::tcp::socket socket);
  bool make_room();
  std::vector<std::shared_ptr<Connection>> snapshot() const;

  const ServerOptions& options_;
  Service& service_;
  std::function<void()> on_rest_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  std::uint16_t port_ = 0;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::unordered_set<std::shared_ptr<Connection>> finishing_;  // of these, in work at drain()
};

}  // namespace tessera::server
