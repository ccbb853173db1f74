// Requests and responses as plain values, and the two sides of one exchange. Everything here
// belongs to the I/O thread.
//
// A Connection reads an HttpRequest, hands it to the Service together with itself as
// ResponseWriter, and keeps the Exchange that comes back until the response is complete or the
// client is gone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;  // percent-encoded as received, without query and trailing slash
  std::string query;
  Headers headers;  // names in lower case
  std::string body;
  std::string id;  // for x-request-id

  // The first header of that (lower case) name, or empty.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  Headers headers;
  std::string body;
};

// Takes exactly one response: send(), or begin_stream() ... end_stream(). Valid until the response
// is complete or Exchange::disconnected() was called.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void send(HttpResponse response) = 0;
  // The head goes out at once. `keep_alive_text` is written whenever the stream was silent for the
  // ping interval.
  virtual void begin_stream(HttpResponse head, std::string keep_alive_text) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
};

// A request in work.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The client is gone or reads too slowly: stop the work, touch the writer no more.
  virtual void disconnected() = 0;
  // The drain's grace is over: end the response now.
  virtual void shut_down() = 0;
};

}  // namespace tessera::server
