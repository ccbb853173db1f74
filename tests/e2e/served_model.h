// `tessera serve` as a process of its own on a synthetic model, and what the tests ask of it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/program.h"
#include "tests/http/client.h"

namespace tessera::testing {

using http_test::Client;
using http_test::Reply;
using nlohmann::json;

// Written once; long contexts, so that a request can be made to last.
inline const std::string& tiny_model() {
  static const std::string path = [] {
    std::string file = scratch_folder() + "/tiny.gguf";
    const Outcome made = run_program({{"synth", "qwen35moe", file, "--preset", "tiny", "--set",
                                       "context_length=32768", "--log-level", "warn"}});
    EXPECT_EQ(made.code, 0) << made.err;
    return file;
  }();
  return path;
}

// The limit is there against hanging alone.
template <typename Done>
bool eventually(Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class Served {
 public:
  explicit Served(std::vector<std::string> options, const std::string& model = tiny_model(),
                  bool ready = true, const std::vector<std::string>& environment = {})
      : process_(arguments(model, std::move(options)), "serve", environment) {
    const std::string before = "listening on http://127.0.0.1:";
    if (!process_.wait_for(before) || (ready && !wait_ready())) {
      ADD_FAILURE() << "the server did not start: " << output();
      return;
    }
    const std::string text = output();
    port_ = static_cast<std::uint16_t>(std::stoi(text.substr(text.find(before) + before.size())));
  }

  std::uint16_t port() const { return port_; }
  std::string output() const { return process_.output(); }
  bool says(const std::string& text) { return process_.wait_for(text); }
  bool wait_ready() { return says("Try: curl"); }
  void signal(int number) const { process_.signal(number); }
  std::vector<int> children() const { return process_.children(); }
  int pid() const { return process_.pid(); }
  // The exit code; -1 when it has not said within two minutes that it ends.
  int wait() { return process_.wait(); }
  int wait_for_end() { return process_.wait_for("info stopped") ? process_.wait() : -1; }

  Reply complete(const json& body, std::string_view headers = "") const {
    return http_test::post(port_, "/v1/completions", body.dump(), headers);
  }
  Reply chat(const json& body) const {
    return http_test::post(port_, "/v1/chat/completions", body.dump());
  }

  // -1 when there is no such line. `name` includes the labels.
  double metric(const std::string& name) const {
    const std::string page = "\n" + http_test::get(port_, "/metrics").body;
    const std::size_t line = page.find("\n" + name + " ");
    return line == std::string::npos ? -1.0 : std::stod(page.substr(line + name.size() + 2));
  }
  bool becomes(const std::string& name, double value) const {
    return eventually([&] { return metric(name) == value; });
  }
  bool reaches(const std::string& name, double value) const {
    return eventually([&] { return metric(name) >= value; });
  }

 private:
  static std::vector<std::string> arguments(const std::string& model,
                                            std::vector<std::string> options) {
    options.insert(options.begin(), {model, "--port", "0", "--threads", "2"});
    return options;
  }

  ServerProcess process_;
  std::uint16_t port_ = 0;
};

// Greedy, and never ended by the model.
inline json greedy(json prompt, int max_tokens) {
  return {{"prompt", std::move(prompt)},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true}};
}

inline json with(json body, const json& more) {
  body.update(more);
  return body;
}

// Ids below the tiny model's special tokens.
inline json some_ids(int count, int first = 0) {
  json ids = json::array();
  for (int i = 0; i < count; ++i) ids.push_back(20 + (first * 31 + i * 7) % 200);
  return ids;
}

}  // namespace tessera::testing
