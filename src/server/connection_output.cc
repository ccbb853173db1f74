// The writing half of Connection.
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>

#include "base/log.h"
#include "server/connection.h"

namespace tessera::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

void Connection::append_head(const HttpResponse& response, std::string_view framing) {
  const auto reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(response.status)));
  pending_ += fmt::format("HTTP/1.1 {} {}\r\n", response.status,
                          std::string_view(reason.data(), reason.size()));
  const auto add = [&](const Headers& headers) {
    for (const auto& [name, value] : headers) pending_ += fmt::format("{}: {}\r\n", name, value);
  };
  add(service_.common_headers(head_));
  add(response.headers);
  close_after_ = close_after_ || service_.draining();
  pending_ += framing;
  pending_ += close_after_ ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  service_.count(head_, response.status);
}

void Connection::send(HttpResponse response) {
  if (phase_ != Phase::busy || response_complete_) return;
  const bool bodiless = response.status == 204;
  append_head(response,
              bodiless ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (!bodiless && head_.method != "HEAD") pending_ += response.body;
  response_complete_ = true;
  flush();
}

void Connection::begin_stream(HttpResponse head, std::string keep_alive_text) {
  if (phase_ != Phase::busy || response_complete_) return;
  streaming_ = true;
  keep_alive_text_ = std::move(keep_alive_text);
  if (!http_1_1_) close_after_ = true;
  append_head(head, http_1_1_ ? "Transfer-Encoding: chunked\r\n" : "");
  last_output_ = Clock::now();
  flush();
  arm_ping_timer();
}

void Connection::write(std::string_view bytes) {
  if (phase_ != Phase::busy || !streaming_ || response_complete_ || bytes.empty()) return;
  if (pending_.size() + bytes.size() > options_.max_output) {
    log_warn("request {}: the client reads too slowly, its generation is cancelled", head_.id);
    service_.metrics().slow_readers.add();
    return client_gone();
  }
  if (http_1_1_) {
    pending_ += fmt::format("{:x}\r\n", bytes.size());
    pending_ += bytes;
    pending_ += "\r\n";
  } else {
    pending_ += bytes;
  }
  last_output_ = Clock::now();
  flush();
}

void Connection::end_stream() {
  if (phase_ != Phase::busy || !streaming_ || response_complete_) return;
  if (http_1_1_) pending_ += "0\r\n\r\n";
  response_complete_ = true;
  flush();
}

void Connection::flush() {
  if (writing_ || phase_ == Phase::closed) return;
  if (in_flight_sent_ == in_flight_.size()) {
    in_flight_.clear();
    in_flight_sent_ = 0;
    in_flight_.swap(pending_);
  }
  if (in_flight_.empty()) {
    if (response_complete_) response_done();
    return;
  }
  writing_ = true;
  write_timer_.expires_after(options_.timeouts.send_stall);
  write_timer_.async_wait([self = shared_from_this()](const ErrorCode& ec) {
    if (ec || self->write_timer_.expiry() > Clock::now() || !self->writing_) return;
    self->service_.metrics().slow_readers.add();
    self->client_gone();
  });
  socket_.async_write_some(
      asio::buffer(in_flight_.data() + in_flight_sent_, in_flight_.size() - in_flight_sent_),
      [self = shared_from_this()](const ErrorCode& ec, std::size_t size) {
        self->on_write(ec, size);
      });
}

void Connection::on_write(const ErrorCode& ec, std::size_t size) {
  writing_ = false;
  write_timer_.cancel();
  if (phase_ == Phase::closed) return;
  if (ec) return client_gone();
  in_flight_sent_ += size;
  flush();
}

void Connection::response_done() {
  exchange_.reset();
  ping_timer_.cancel();
  streaming_ = false;
  response_complete_ = false;
  if (close_after_ || service_.draining()) return linger();
  // Through the loop, so that a long pipeline neither nests calls nor keeps others waiting.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::busy) self->next_request();
  });
}

}  // namespace tessera::server
