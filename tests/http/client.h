// A blocking HTTP client over a raw socket, so that tests control every byte and every close.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::http_test {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // of a chunked one: joined
  bool complete = false;                       // the whole body came

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

class Client {
 public:
  explicit Client(std::uint16_t port, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(std::string_view bytes);  // false when the peer is gone
  Reply read_reply(bool head_only = false);
  // Reads until `text` has come (true) or the connection or the time ended.
  bool read_until(std::string_view text);
  bool closed_by_peer();  // waits for the end of input
  void shut_down_sending();
  void reset();  // closes with a reset
  const std::string& input() const { return input_; }

 private:
  bool fill();  // more input; false at the end or after half a minute

  int fd_ = -1;
  std::string input_;
};

std::string get_request(std::string_view path, std::string_view headers = "");
std::string post_request(std::string_view path, std::string_view body,
                         std::string_view headers = "");

// One request on its own connection.
Reply get(std::uint16_t port, std::string_view path, std::string_view headers = "");
Reply post(std::uint16_t port, std::string_view path, std::string_view body,
           std::string_view headers = "");

// The data of each event of a stream.
std::vector<std::string> sse_events(std::string_view body);

}  // namespace tessera::http_test
