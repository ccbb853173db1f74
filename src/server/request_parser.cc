#include "server/request_parser.h"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <fmt/core.h>

#include "server/random_id.h"

namespace tessera::server {
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace asio = boost::asio;

// A string body that is not reserved by the Content-Length that the peer claims.
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>&, beast::error_code& ec) { ec = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, beast::error_code& ec) {
      ec = {};
      std::size_t size = 0;
      for (const auto buffer : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        size += buffer.size();
      }
      return size;
    }
    void finish(beast::error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

namespace {

std::string lower(beast::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

// A client's id is echoed if it is short and plain.
bool is_sane_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

struct RequestParser::Impl {
  http::request_parser<GrowingBody> parser;
};

RequestParser::RequestParser(const Limits& limits)
    : impl_(std::make_unique<Impl>()), limits_(limits) {
  impl_->parser.header_limit(
      static_cast<std::uint32_t>(std::min<std::size_t>(limits.header, 0x7FFFFFFF)));
  impl_->parser.body_limit(limits.body);
  request_.id = random_id("req_");
}

RequestParser::~RequestParser() = default;

bool RequestParser::has_body() const {
  return !impl_->parser.is_done();
}
bool RequestParser::keep_alive() const {
  return impl_->parser.is_header_done() && impl_->parser.get().keep_alive();
}
bool RequestParser::is_http_1_1() const {
  return impl_->parser.get().version() >= 11;
}

bool RequestParser::expects_continue() const {
  return is_http_1_1() && lower(impl_->parser.get()[http::field::expect]) == "100-continue";
}

void RequestParser::fail(int status, std::string message) {
  state_ = State::failed;
  failure_status_ = status;
  failure_ = std::move(message);
}

void RequestParser::fill_head() {
  const auto& head = impl_->parser.get();
  request_.method = std::string(head.method_string());
  std::string target(head.target());
  // Absolute form: the scheme and authority say nothing new.
  if (const auto scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const auto slash = target.find('/', scheme + 3);
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const std::size_t question = std::min(target.find('?'), target.size());
  request_.query = target.substr(std::min(question + 1, target.size()));
  request_.path = target.substr(0, question);
  while (request_.path.size() > 1 && request_.path.ends_with('/')) request_.path.pop_back();
  for (const auto& field : head) {
    request_.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  }
  if (const auto id = request_.header("x-request-id"); is_sane_id(id)) request_.id = id;
}

void RequestParser::read_body() {
  if (state_ != State::head) return;
  state_ = State::reading_body;
  if (impl_->parser.is_done()) state_ = State::complete;
}

std::size_t RequestParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::reading_head || state_ == State::reading_body) {
    beast::error_code ec;
    const std::size_t taken =
        impl_->parser.put(asio::const_buffer(bytes.data() + used, bytes.size() - used), ec);
    used += taken;
    if (ec == http::error::need_more) break;
    if (ec) {
      if (state_ == State::reading_head) fill_head();
      if (ec == http::error::body_limit) {
        fail(413, "the request body is too large");
      } else if (ec == http::error::header_limit) {
        fail(431, fmt::format("the request's head is larger than {} bytes", limits_.header));
      } else {
        fail(400, fmt::format("the request is not valid HTTP: {}", ec.message()));
      }
      break;
    }
    if (state_ == State::reading_head && impl_->parser.is_header_done()) {
      fill_head();
      state_ = State::head;
    } else if (state_ == State::reading_body && impl_->parser.is_done()) {
      request_.body = std::move(impl_->parser.get().body());
      state_ = State::complete;
    } else if (taken == 0) {
      break;
    }
  }
  return used;
}

}  // namespace tessera::server
