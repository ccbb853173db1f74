#include "server/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>

#include "base/log.h"

namespace tessera::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kPipelinedBytes = 64 << 10;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

ApiError parse_failure(const RequestParser& parser, std::size_t max_body) {
  if (parser.failure_status() == 413) return body_too_large(max_body);
  ApiError error = bad_request(parser.failure());
  error.status = parser.failure_status();
  return error;
}

ApiError timed_out(const char* what) {
  return {.status = 408,
          .type = "timeout_error",
          .message = fmt::format("the request's {} did not arrive in time", what)};
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, const ServerOptions& options, Service& service,
                       Closed closed)
    : socket_(std::move(socket)),
      options_(options),
      service_(service),
      closed_(std::move(closed)),
      input_(options.max_header + kPipelinedBytes + kReadBytes),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()) {}

void Connection::start() {
  ErrorCode ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  next_request();
}

void Connection::next_request() {
  parser_ = std::make_unique<RequestParser>(
      RequestParser::Limits{.header = options_.max_header, .body = options_.max_body});
  parser_used_ = false;
  phase_ = Phase::head;
  idle_since_ = Clock::now();
  arm_read_timer(options_.timeouts.keep_alive);
  advance();
  if (phase_ == Phase::head && input_ended_) return close();
  start_read();
}

void Connection::start_read() {
  if (reading_ || input_ended_ || phase_ == Phase::closed) return;
  if (phase_ == Phase::busy && input_.size() >= kPipelinedBytes) return watch_for_reset();
  reading_ = true;
  socket_.async_read_some(input_.prepare(kReadBytes),
                          [self = shared_from_this()](const ErrorCode& ec, std::size_t size) {
                            self->on_read(ec, size);
                          });
}

void Connection::on_read(const ErrorCode& ec, std::size_t size) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  if (ec == asio::error::eof) return on_end_of_input();
  if (ec) return client_gone();
  input_.commit(size);
  if (phase_ == Phase::lingering) input_.consume(input_.size());
  if (phase_ == Phase::body)
    arm_read_timer(options_.timeouts.body_idle, error_response(timed_out("body")));
  advance();
  start_read();
}

void Connection::on_end_of_input() {
  input_ended_ = true;
  if (phase_ != Phase::busy) return client_gone();
  close_after_ = true;
  if (!http_1_1_) return client_gone();
  watch_for_reset();
  probe();
}

void Connection::probe() {
  if (response_complete_) return;
  pending_ += streaming_ ? fmt::format("{:x}\r\n{}\r\n", keep_alive_text_.size(), keep_alive_text_)
                         : std::string(kContinue);
  flush();
  arm_ping_timer();
}

// Ends when the peer resets the connection; plain end of input does not wake it.
void Connection::watch_for_reset() {
  socket_.async_wait(asio::ip::tcp::socket::wait_error,
                     [self = shared_from_this()](const ErrorCode& ec) {
                       if (!ec && self->phase_ == Phase::busy) self->client_gone();
                     });
}

void Connection::advance() {
  while (phase_ == Phase::head || phase_ == Phase::body) {
    if (input_.size() == 0) return;
    if (!parser_used_) {
      parser_used_ = true;
      arm_read_timer(options_.timeouts.header, error_response(timed_out("head")));
    }
    const auto bytes = input_.data();
    const std::size_t used = parser_->feed({static_cast<const char*>(bytes.data()), bytes.size()});
    input_.consume(used);
    switch (parser_->state()) {
      case RequestParser::State::head:
        if (!on_head()) return;
        break;
      case RequestParser::State::complete:
        return on_request();
      case RequestParser::State::failed:
        head_ = std::move(parser_->request());
        return refuse(error_response(parse_failure(*parser_, options_.max_body)));
      default:
        // A chunk's head that never ends.
        if (input_.size() > options_.max_header + kPipelinedBytes) {
          return refuse(
              error_response(bad_request("the request is not valid HTTP: a line is too long")));
        }
        return;
    }
  }
}

// False when the request was answered from its head.
bool Connection::on_head() {
  http_1_1_ = parser_->is_http_1_1();
  close_after_ = !parser_->keep_alive();
  head_ = std::move(parser_->request());
  parser_->request() = {};
  if (auto response = service_.check_head(head_)) {
    if (parser_->has_body()) {
      refuse(*std::move(response));
    } else {
      phase_ = Phase::busy;
      send(*std::move(response));
    }
    return false;
  }
  phase_ = Phase::body;
  if (parser_->has_body()) {
    body_deadline_ = Clock::now() + options_.timeouts.body_total;
    arm_read_timer(options_.timeouts.body_idle, error_response(timed_out("body")));
    if (parser_->expects_continue()) {
      pending_ += kContinue;
      flush();
    }
  }
  parser_->read_body();
  if (parser_->state() != RequestParser::State::complete) return true;
  on_request();
  return false;
}

void Connection::on_request() {
  phase_ = Phase::busy;
  read_timer_.cancel();
  HttpRequest request = head_;
  request.body = std::move(parser_->request().body);
  parser_.reset();
  auto exchange = service_.handle(std::move(request), *this);
  if (phase_ == Phase::busy && !response_complete_) exchange_ = std::move(exchange);
}

// Answers without having read all of the request, so that the connection cannot go on.
void Connection::refuse(HttpResponse response) {
  phase_ = Phase::busy;
  close_after_ = true;
  read_timer_.cancel();
  send(std::move(response));
}

void Connection::arm_read_timer(Milliseconds after, std::optional<HttpResponse> answer) {
  auto deadline = Clock::now() + after;
  if (phase_ == Phase::body) deadline = std::min(deadline, body_deadline_);
  read_timer_.expires_at(deadline);
  read_timer_.async_wait(
      [self = shared_from_this(), answer = std::move(answer)](const ErrorCode& ec) {
        if (ec || self->read_timer_.expiry() > Clock::now() || self->phase_ == Phase::busy) return;
        if (!answer || self->phase_ == Phase::lingering) return self->close();
        self->refuse(*answer);
      });
}

void Connection::arm_ping_timer() {
  ping_timer_.expires_after(options_.timeouts.ping);
  ping_timer_.async_wait([self = shared_from_this()](const ErrorCode& ec) {
    if (ec || self->ping_timer_.expiry() > Clock::now()) return;
    if (self->phase_ != Phase::busy || self->response_complete_) return;
    if (self->input_ended_) return self->probe();
    if (self->streaming_ && Clock::now() - self->last_output_ >= self->options_.timeouts.ping) {
      self->write(self->keep_alive_text_);
    }
    if (self->phase_ == Phase::busy) self->arm_ping_timer();
  });
}

void Connection::drain() {
  if (phase_ != Phase::body) return;
  if (auto refusal = service_.check_head(head_)) refuse(*std::move(refusal));
}

void Connection::shut_down() {
  if (const auto exchange = exchange_) exchange->shut_down();
}

void Connection::client_gone() {
  if (phase_ == Phase::closed) return;
  const bool unanswered = phase_ == Phase::busy && exchange_ && !streaming_;
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->disconnected();
  if (unanswered) service_.count(head_, 499);
  close();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  closed_(shared_from_this());
}

// Lets the client read the answer: closing with unread input would reset the connection.
void Connection::linger() {
  if (input_ended_) return close();
  ErrorCode ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  phase_ = Phase::lingering;
  input_.consume(input_.size());
  arm_read_timer(options_.timeouts.linger);
  start_read();
}

}  // namespace tessera::server
