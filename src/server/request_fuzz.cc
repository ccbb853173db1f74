// libFuzzer: arbitrary bytes as HTTP input, as chat and as completion bodies.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/prepare.h"
#include "server/request_parser.h"

namespace {

using tessera::TokenId;
using namespace tessera::server;

ServedModel byte_model() {
  ServedModel model;
  model.id = "fuzz";
  model.vocabulary = 256;
  model.encode = [](std::string_view text, EncodeRules) {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  model.encode_chat = [encode = model.encode](const std::vector<PromptSegment>& segments) {
    std::vector<TokenId> ids;
    for (const auto& segment : segments) {
      const auto part = encode(segment.text, {});
      ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  };
  model.decode = [](const std::vector<TokenId>& ids) { return std::string(ids.size(), 'x'); };
  model.piece = [](TokenId) { return std::string("x"); };
  model.render_chat = [](const ChatPrompt& prompt) -> tessera::Result<std::vector<PromptSegment>> {
    std::vector<PromptSegment> out;
    for (const auto& message : prompt.messages) {
      out.push_back({message["content"].get<std::string>(), false});
    }
    return out;
  };
  return model;
}

// What was accepted must be within what the engine is promised.
void check(const Prepared& prepared, int context) {
  const auto* generation = std::get_if<PreparedGeneration>(&prepared);
  if (!generation) {
    CHECK(std::get<ApiError>(prepared).status == 400, "a body can only be a bad request");
    return;
  }
  CHECK(!generation->requests.empty(), "a request has choices");
  for (const auto& request : generation->requests) {
    const int prompt = static_cast<int>(request.prompt.size());
    CHECK(prompt > 0 && request.max_tokens > 0 && prompt + request.max_tokens <= context,
          "a request fits the context");
    CHECK(request.stop.size() <= 16, "stops are bounded");
    for (const TokenId id : request.prompt) CHECK(id >= 0 && id < 256, "ids are in the vocabulary");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ServedModel model = byte_model();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const PrepareContext context{model, {}, 512, 64, "fuzz"};
  check(prepare_chat(bytes, context), 512);
  check(prepare_completion(bytes, context), 512);

  RequestParser parser({.header = 4096, .body = 65536});
  std::size_t used = parser.feed(bytes);
  if (parser.state() == RequestParser::State::head) {
    parser.read_body();
    used += parser.feed(bytes.substr(used));
  }
  CHECK(used <= size, "a parser takes no more than there is");
  return 0;
}
