#include "tests/http/client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace tessera::http_test {

Client::Client(std::uint16_t port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

Client::~Client() {
  if (fd_ >= 0) ::close(fd_);
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool Client::fill() {
  if (fd_ < 0) return false;
  pollfd entry{fd_, POLLIN, 0};
  if (::poll(&entry, 1, 30000) <= 0) return false;
  char buffer[16384];
  const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
  if (got <= 0) return false;
  input_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

bool Client::read_until(std::string_view text) {
  while (input_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

bool Client::closed_by_peer() {
  while (fill()) {
  }
  pollfd entry{fd_, POLLIN, 0};
  char byte;
  return ::poll(&entry, 1, 0) > 0 && ::recv(fd_, &byte, 1, 0) <= 0;
}

void Client::shut_down_sending() {
  ::shutdown(fd_, SHUT_WR);
}

void Client::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  ::close(fd_);
  fd_ = -1;
}

Reply Client::read_reply(bool head_only) {
  Reply reply;
  if (!read_until("\r\n\r\n")) return reply;
  std::string head = input_.substr(0, input_.find("\r\n\r\n") + 2);
  input_.erase(0, head.size() + 2);
  reply.status = std::atoi(head.substr(9, 3).c_str());
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t end = head.find("\r\n", at);
    const std::size_t colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (reply.status == 100) return read_reply(head_only);
  if (head_only || reply.status == 204) {
    reply.complete = true;
  } else if (reply.headers.contains("content-length")) {
    const std::size_t size = std::stoul(reply.headers["content-length"]);
    while (input_.size() < size && fill()) {
    }
    reply.complete = input_.size() >= size;
    reply.body = input_.substr(0, size);
    input_.erase(0, size);
  } else if (reply.headers.contains("transfer-encoding")) {
    while (read_until("\r\n")) {
      const std::size_t line = input_.find("\r\n");
      const std::size_t size = std::stoul(input_.substr(0, line), nullptr, 16);
      while (input_.size() < line + 2 + size + 2 && fill()) {
      }
      if (input_.size() < line + 2 + size + 2) break;
      reply.body += input_.substr(line + 2, size);
      input_.erase(0, line + 2 + size + 2);
      reply.complete = size == 0;
      if (reply.complete) break;
    }
  } else {
    reply.complete = closed_by_peer();
    reply.body = std::exchange(input_, {});
  }
  return reply;
}

std::string get_request(std::string_view path, std::string_view headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, headers);
}

std::string post_request(std::string_view path, std::string_view body, std::string_view headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}"
      "\r\n{}",
      path, body.size(), headers, body);
}

Reply get(std::uint16_t port, std::string_view path, std::string_view headers) {
  Client client(port);
  client.send(get_request(path, headers));
  return client.read_reply();
}

Reply post(std::uint16_t port, std::string_view path, std::string_view body,
           std::string_view headers) {
  Client client(port);
  client.send(post_request(path, body, headers));
  return client.read_reply();
}

std::vector<std::string> sse_events(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const std::size_t end = std::min(body.find("\n\n"), body.size());
    const std::string_view event = body.substr(0, end);
    if (event.starts_with("data: ")) out.emplace_back(event.substr(6));
    body.remove_prefix(std::min(end + 2, body.size()));
  }
  return out;
}

}  // namespace tessera::http_test
