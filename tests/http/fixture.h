// A running server over a FakeEngine.
#pragma once

#include <gtest/gtest.h>

#include "server/server.h"
#include "tests/http/client.h"
#include "tests/http/fake_engine.h"
#include "tests/http/toy_model.h"

namespace tessera::http_test {

class Running {
 public:
  explicit Running(FakeEngine::Script script = {}, FakeOptions engine_options = {},
                   server::ServerOptions options = {}, bool ready = true)
      : engine(engine_options, std::move(script)) {
    options.port = 0;
    auto started = server::Server::start(std::move(options), metrics);
    if (!started) {
      ADD_FAILURE() << started.error().message;
      return;
    }
    server = *std::move(started);
    if (ready) server->set_ready(toy_model(), engine);
  }

  std::uint16_t port() const { return server->port(); }
  Reply chat(const std::string& fields, const std::string& content = "hi") const {
    return post(port(), "/v1/chat/completions", chat_body(fields, content));
  }
  Reply complete(const std::string& fields) const {
    return post(port(), "/v1/completions", "{" + fields + "}");
  }
  static std::string chat_body(const std::string& fields, const std::string& content = "hi") {
    return R"({"model":"toy","messages":[{"role":"user","content":")" + content + "\"}]" +
           (fields.empty() ? "" : ",") + fields + "}";
  }

  MetricsRegistry metrics;
  FakeEngine engine;
  std::unique_ptr<server::Server> server;
};

inline FakeEngine::Script endless(int prefill_steps = 1) {
  return [prefill_steps](const GenerationRequest&) {
    FakeScript script;
    script.repeat = true;
    script.prefill_steps = prefill_steps;
    return script;
  };
}

}  // namespace tessera::http_test
