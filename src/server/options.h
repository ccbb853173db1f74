// What a person may set of the HTTP server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/generation_fields.h"

namespace tessera::server {

struct ServerTimeouts {
  std::chrono::milliseconds header{
      10'000};  // from a request's first byte (or the connection) to its head's end
  std::chrono::milliseconds body_idle{30'000};  // between two reads of a body
  std::chrono::milliseconds body_total{300'000};
  std::chrono::milliseconds keep_alive{75'000};  // between requests
  std::chrono::milliseconds send_stall{30'000};  // the client takes no byte
  std::chrono::milliseconds linger{2'000};       // for what a refused client still sends
  std::chrono::milliseconds ping{10'000};        // silence of a stream before a comment is sent
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // address or name
  std::uint16_t port = 8080;       // 0: any free one
  std::vector<std::string> api_keys;
  bool insecure = false;  // allow an address other than loopback without a key
  bool metrics_need_key = false;
  std::vector<std::string> cors_origins;  // "*": any
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_header = std::size_t{64} << 10;
  std::size_t max_connections = 1024;
  std::size_t max_output = std::size_t{4} << 20;  // bytes of a stream that wait for a slow reader
  int workers = 2;                                // threads that parse and tokenise
  ServerTimeouts timeouts;
  RequestLimits requests;
  std::string version = "0.1.0";
};

}  // namespace tessera::server
