// Connection: one client socket. Reads requests, hands them to the Service, writes answers. I/O
// thread only.
//
// A read is outstanding also while a request is in work: it collects what a pipelining client sends
// next (up to 64 KiB) and notices at once when the client goes away, whatever the request is doing.
//
// End of input while a request is in work may be a client that closed, or one that only shut its
// sending side and still wants the answer. The two look alike until something is sent. So something
// harmless is sent, now and in every ping interval (a comment into a stream, else "100 Continue",
// which HTTP/1.1 clients must accept at any time): a client that is gone answers with a reset,
// which ends the request; one that listens gets its answer. An HTTP/1.0 client cannot be asked and
// counts as gone.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/options.h"
#include "server/request_parser.h"
#include "server/service.h"

namespace tessera::server {

class Connection : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  using Closed = std::function<void(const std::shared_ptr<Connection>&)>;

  Connection(boost::asio::ip::tcp::socket socket, const ServerOptions& options, Service& service,
             Closed closed);

  void start();
  // Between two requests.
  bool is_idle() const { return phase_ == Phase::head && !parser_used_; }
  // On an answer, or until the client has read it.
  bool is_working() const { return phase_ == Phase::busy || phase_ == Phase::lingering; }
  std::chrono::steady_clock::time_point idle_since() const { return idle_since_; }
  void close();
  void drain();      // refuses the request that is coming; closes after each answer by itself
  void shut_down();  // ends the answer in work with an error

  void send(HttpResponse response) override;
  void begin_stream(HttpResponse head, std::string keep_alive_text) override;
  void write(std::string_view bytes) override;
  void end_stream() override;

 private:
  enum class Phase { head, body, busy, lingering, closed };
  using Milliseconds = std::chrono::milliseconds;
  using ErrorCode = boost::system::error_code;

  void start_read();
  void on_read(const ErrorCode& ec, std::size_t size);
  void on_end_of_input();
  void advance();
  bool on_head();
  void on_request();
  void refuse(HttpResponse response);

  void arm_read_timer(Milliseconds after, std::optional<HttpResponse> answer = {});
  void arm_ping_timer();
  void probe();
  void watch_for_reset();

  void append_head(const HttpResponse& response, std::string_view framing);
  void flush();
  void on_write(const ErrorCode& ec, std::size_t size);
  void response_done();
  void next_request();
  void linger();
  void client_gone();

  boost::asio::ip::tcp::socket socket_;
  const ServerOptions& options_;
  Service& service_;
  Closed closed_;

  Phase phase_ = Phase::head;
  std::unique_ptr<RequestParser> parser_;
  bool parser_used_ = false;  // some bytes of a request have come
  boost::beast::flat_buffer input_;
  bool reading_ = false;
  bool input_ended_ = false;
  boost::asio::steady_timer read_timer_;
  std::chrono::steady_clock::time_point body_deadline_;
  std::chrono::steady_clock::time_point idle_since_;

  HttpRequest head_;  // of the request in work, without its body
  std::shared_ptr<Exchange> exchange_;
  bool http_1_1_ = true;
  bool close_after_ = false;

  std::string pending_;    // output not yet given to the socket
  std::string in_flight_;  // output that the socket is taking
  std::size_t in_flight_sent_ = 0;
  bool writing_ = false;
  bool streaming_ = false;
  bool response_complete_ = false;
  std::string keep_alive_text_;
  std::chrono::steady_clock::time_point last_output_;
  boost::asio::steady_timer write_timer_;
  boost::asio::steady_timer ping_timer_;
};

}  // namespace tessera::server
