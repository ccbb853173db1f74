#include <unistd.h>

#include <iostream>

#include "cli/answer.h"
#include "cli/output.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kChatCommands =
    "/reset begins anew, /exit ends, /help shows this, Ctrl-C stops an answer";

class Conversation {
 public:
  explicit Conversation(std::string system) : system_(std::move(system)) { reset(); }

  void reset() {
    messages_ = Json::array();
    if (!system_.empty()) add("system", system_);
  }
  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }
  void drop_last() { messages_.erase(messages_.size() - 1); }
  const Json& messages() const { return messages_; }

 private:
  std::string system_;
  Json messages_;
};

Status take_turn(const Config& config, const TextModel& text, CancellableEngine& engine,
                 Conversation& conversation) {
  ChatInput input;
  input.messages = conversation.messages();
  input.kwargs = Json::object();
  input.now = clock_now();
  TESSERA_ASSIGN(std::vector<TokenId> prompt, text.encode_chat(input));
  TESSERA_ASSIGN(const Generated generated,
                 answer(engine, request_for(config, std::move(prompt)), true));
  conversation.add("assistant", generated.text);
  log_speed(generated.finish);
  return {};
}

}  // namespace

int chat(const Config& config, const TextModel& text, CancellableEngine& engine) {
  if (!text.chat) return fail(Error::make(ErrorCode::invalid, "{}", text.no_chat));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) print_out("Type a message. {}.\n", kChatCommands);
  Conversation conversation(config.text("run.system"));
  std::string line;
  for (;;) {
    if (terminal) print_out("> ");
    flush_out();
    if (!std::getline(std::cin, line)) break;
    if (line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    if (line == "/help") {
      print_out("{}.\n", kChatCommands);
      continue;
    }
    if (line.empty()) continue;
    conversation.add("user", line);
    if (const Status status = take_turn(config, text, engine, conversation); !status) {
      const int code = fail(status.error());
      if (!terminal) return code;
      conversation.drop_last();
    }
  }
  if (terminal) print_out("\n");
  return kExitOk;
}

}  // namespace tessera::cli
