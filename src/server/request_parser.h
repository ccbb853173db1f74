// RequestParser: the bytes of one HTTP/1.x request to an HttpRequest, in pieces, within limits.
//
//   size_t used = parser.feed(bytes);     // any prefix; call again with the rest and more
//   if (parser.state() == State::head) check(parser.request()), parser.read_body();
//
// feed() stops after the head (state head) until read_body() is called, and after the request
// (state complete); what follows belongs to the next request. Lengths come from the limits, never
// from the peer: the body's buffer grows with what arrives.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace tessera::server {

class RequestParser {
 public:
  enum class State { reading_head, head, reading_body, complete, failed };
  struct Limits {
    std::size_t header = 0;
    std::size_t body = 0;
  };

  explicit RequestParser(const Limits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  std::size_t feed(std::string_view bytes);
  void read_body();

  State state() const { return state_; }
  // From state head on (complete: with the body); after a failure, what was read of the head.
  HttpRequest& request() { return request_; }
  int failure_status() const { return failure_status_; }  // 400, 413 or 431
  const std::string& failure() const { return failure_; }

  bool has_body() const;  // at state head: a body follows
  bool keep_alive() const;
  bool is_http_1_1() const;
  bool expects_continue() const;

 private:
  struct Impl;  // the Beast parser, which is slow to compile

  void fill_head();
  void fail(int status, std::string message);

  std::unique_ptr<Impl> impl_;
  Limits limits_;
  State state_ = State::reading_head;
  HttpRequest request_;
  int failure_status_ = 0;
  std::string failure_;
};

}  // namespace tessera::server
