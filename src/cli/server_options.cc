#include "cli/server_options.h"

#include <utility>

#include "cli/output.h"

namespace tessera::cli {
namespace {

Result<std::vector<std::string>> api_keys(const Config& config) {
  std::vector<std::string> keys = config.list("server.api_key");
  for (const std::string& key : keys)
    if (key.empty()) return Error::make(ErrorCode::invalid, "--api-key is empty; give a key");
  const std::string& path = config.text("server.api_key_file");
  if (path.empty()) return keys;
  TESSERA_ASSIGN(const std::string text, read_text_file(path));
  std::string key;
  for (const char c : text + "\n") {
    if (c != '\n' && c != '\r') {
      key += c;
    } else if (!key.empty()) {
      keys.push_back(std::exchange(key, {}));
    }
  }
  if (keys.empty()) return Error::make(ErrorCode::invalid, "{}: no key in this file", path);
  return keys;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

}  // namespace

Result<server::ServerOptions> server_options(const Config& config) {
  server::ServerOptions options;
  options.host = config.text("server.host");
  options.port = static_cast<std::uint16_t>(config.integer("server.port"));
  TESSERA_ASSIGN(options.api_keys, api_keys(config));
  options.insecure = config.flag("server.insecure");
  options.cors_origins = config.list("server.cors_origin");
  options.max_body = static_cast<std::size_t>(config.integer("server.max_body"));
  options.max_header = static_cast<std::size_t>(config.integer("server.max_header"));
  options.max_connections = static_cast<std::size_t>(config.integer("server.max_connections"));
  options.timeouts.header = milliseconds(config.number("server.header_timeout"));
  options.timeouts.keep_alive = milliseconds(config.number("server.idle_timeout"));
  options.version = TESSERA_VERSION;
  return options;
}

std::string served_id(const Config& config, const ModelPath& path) {
  const std::string& alias = config.text("server.alias");
  return alias.empty() ? model_stem(path.path) : alias;
}

std::chrono::milliseconds drain_time(const Config& config) {
  return milliseconds(config.number("server.drain"));
}

}  // namespace tessera::cli
