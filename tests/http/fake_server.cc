// A server with a scripted engine, for client tests: prints "listening on PORT" and runs until its
// standard input ends. Words in the prompt choose the script: [slow], [fail], [full], [long],
// [unicode].
#include <fmt/core.h>

#include <cstdio>

#include "server/server.h"
#include "tests/http/fake_engine.h"
#include "tests/http/toy_model.h"

using namespace tessera;
using namespace tessera::http_test;

namespace {

FakeScript choose(const GenerationRequest& request) {
  const std::string prompt = prompt_text(request.prompt);
  const auto has = [&](const char* word) { return prompt.find(word) != std::string::npos; };
  FakeScript script;
  if (has("[slow]")) script.repeat = true;
  if (has("[long]")) script.prefill_steps = 300;
  if (has("[fail]")) script.fail_after_tokens = 2;
  if (has("[unicode]")) script.pieces = {"\xF0\x9F\x91\x8D", "\xE4\xB8\xAD", "\xE6\x96\x87"};
  if (has("[full]")) script.refuse = Error::make(ErrorCode::exhausted, "the queue is full");
  return script;
}

}  // namespace

int main(int argc, char** argv) {
  FakeEngine engine({.context = 2048}, choose);
  MetricsRegistry metrics;
  server::ServerOptions options;
  options.port = 0;
  options.timeouts.ping = std::chrono::milliseconds(100);
  options.requests.strict_model = true;
  if (argc > 1) options.api_keys = {argv[1]};
  auto server = server::Server::start(options, metrics);
  if (!server) {
    fmt::print(stderr, "{}\n", server.error().message);
    return 1;
  }
  (*server)->set_ready(toy_model(), engine);
  fmt::print("listening on {}\n", (*server)->port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  (*server)->drain(std::chrono::seconds(1));
  return 0;
}
