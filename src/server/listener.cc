#include "server/listener.h"

#include <boost/asio/buffer.hpp>

#include "base/log.h"

namespace tessera::server {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

// Written once, without waiting: a refused client gets no more attention than that.
constexpr std::string_view kTooMany =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Content-Length: 118\r\nConnection: close\r\n\r\n"
    "{\"error\":{\"message\":\"too many connections; try again "
    "soon\",\"type\":\"unavailable_error\","
    "\"param\":null,\"code\":\"overload\"}}";
static_assert(kTooMany.size() - kTooMany.find("\r\n\r\n") - 4 == 118);

}  // namespace

Listener::Listener(asio::io_context& context, const ServerOptions& options, Service& service,
                   std::function<void()> on_rest)
    : options_(options),
      service_(service),
      on_rest_(std::move(on_rest)),
      acceptor_(context),
      retry_(context) {}

Result<tcp::endpoint> Listener::resolve() const {
  tcp::resolver resolver(asio::system_executor{});
  boost::system::error_code ec;
  const auto results =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, ec);
  if (ec || results.empty()) {
    return Error::make(ErrorCode::invalid, "cannot resolve the address '{}': {}", options_.host,
                       ec.message());
  }
  const tcp::endpoint endpoint = results.begin()->endpoint();
  if (!endpoint.address().is_loopback() && options_.api_keys.empty() && !options_.insecure) {
    return Error::make(
        ErrorCode::invalid,
        "refusing to listen on {} without an API key: set one (--api-key), listen on 127.0.0.1, or "
        "allow it (--insecure)",
        endpoint.address().to_string());
  }
  return endpoint;
}

Status Listener::listen() {
  TESSERA_ASSIGN(const tcp::endpoint endpoint, resolve());
  boost::system::error_code ec;
  const auto failed = [&](const char* step) {
    return Error::make(ErrorCode::io, "cannot {} {} port {}: {}", step, options_.host,
                       options_.port, ec.message());
  };
  acceptor_.open(endpoint.protocol(), ec);
  if (ec) return failed("open a socket for");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  acceptor_.bind(endpoint, ec);
  if (ec) return failed("bind");
  acceptor_.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return failed("listen on");
  port_ = acceptor_.local_endpoint(ec).port();
  return {};
}

void Listener::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& ec, tcp::socket socket) {
    on_accept(ec, std::move(socket));
  });
}

void Listener::on_accept(const boost::system::error_code& ec, tcp::socket socket) {
  if (!acceptor_.is_open()) return;
  if (ec) {
    // Out of descriptors, most likely: give others time to close theirs.
    log_warn("cannot accept a connection: {}", ec.message());
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped && acceptor_.is_open()) accept();
    });
    return;
  }
  if (connections_.size() < options_.max_connections || make_room()) {
    auto connection = std::make_shared<Connection>(
        std::move(socket), options_, service_, [this](const std::shared_ptr<Connection>& closed) {
          connections_.erase(closed);
          service_.metrics().connections.set(static_cast<double>(connections_.size()));
          if (finishing_.erase(closed) > 0 && finishing_.empty()) on_rest_();
        });
    connections_.insert(connection);
    service_.metrics().connections.set(static_cast<double>(connections_.size()));
    connection->start();
  } else {
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kTooMany), ignored);
  }
  accept();
}

bool Listener::make_room() {
  std::shared_ptr<Connection> oldest;
  for (const auto& connection : connections_) {
    if (!connection->is_idle()) continue;
    if (!oldest || connection->idle_since() < oldest->idle_since()) oldest = connection;
  }
  if (oldest) oldest->close();
  return oldest != nullptr;
}

std::vector<std::shared_ptr<Connection>> Listener::snapshot() const {
  return {connections_.begin(), connections_.end()};
}

void Listener::drain() {
  for (const auto& connection : snapshot()) {
    connection->drain();
    if (connection->is_working()) finishing_.insert(connection);
  }
}

void Listener::shut_down() {
  for (const auto& connection : snapshot()) connection->shut_down();
}

void Listener::close_all() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  for (const auto& connection : snapshot()) connection->close();
}

}  // namespace tessera::server
