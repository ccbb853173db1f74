// Fuzzes encoding and decoding of any bytes, and creation from a damaged vocabulary.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/token_utf8.h"
#include "text/tokenizer.h"
#include "text/vocab_toy.h"

namespace tessera::text {
namespace {

struct Toys {
  std::vector<Tokenizer> tokenizers;

  Toys() {
    for (TokenizerSpec spec : {toy_byte_level_spec("qwen2"), toy_byte_level_spec("qwen35"),
                               toy_byte_level_spec("laguna"), toy_escaped_spec()}) {
      Result<Tokenizer> made = Tokenizer::create(std::move(spec));
      CHECK(made.ok(), "{}", made.error().message);
      tokenizers.push_back(std::move(*made));
    }
  }
};

// Encoding loses nothing, and text by pieces equals text at once.
void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const bool escaped = tokenizer.vocabulary().spelling() == Spelling::space_escaped;
  for (const bool parse_special : {false, true}) {
    const std::vector<TokenId> ids =
        tokenizer.encode(text, {.parse_special = parse_special, .normalize = false});
    std::string bytes;
    std::string shown;
    Detokenizer detokenizer;
    for (const TokenId id : ids) {
      CHECK(parse_special || !tokenizer.vocabulary().is_special(id));
      bytes += tokenizer.piece(id, true);
      shown += detokenizer.feed(tokenizer.piece(id, true));
    }
    shown += detokenizer.flush();
    CHECK(valid_utf8_end(shown, 0) == shown.size());
    CHECK(shown == tokenizer.decode(ids, true));
    if (!escaped || text.find(kEscapedSpace) == std::string_view::npos) CHECK(bytes == text);
  }
  (void)tokenizer.encode(text, {.add_bos = true});
}

void cut_in_segments(const Tokenizer& tokenizer, std::string_view text, std::size_t cut) {
  const std::string_view left = text.substr(0, cut);
  const std::string_view right = text.substr(cut);
  const std::vector<Segment> untrusted = {{left, false}, {right, false}};
  CHECK(tokenizer.encode(untrusted) == tokenizer.encode(text));
  const std::vector<Segment> trusted = {{left, true}, {right, true}};
  CHECK(tokenizer.encode(trusted) == tokenizer.encode(text, {.parse_special = true}));
  const std::vector<Segment> mixed = {{left, true}, {right, false}};
  (void)tokenizer.encode(mixed);
}

// Every byte of the input changes something of a valid vocabulary.
void damage(std::string_view input) {
  TokenizerSpec spec = input.size() % 2 == 0 ? toy_byte_level_spec() : toy_escaped_spec();
  for (std::size_t i = 0; i + 2 < input.size() && i < 60; i += 3) {
    const auto what = static_cast<std::uint8_t>(input[i]);
    const std::size_t at = static_cast<std::uint8_t>(input[i + 1]) % spec.tokens.size();
    const auto value = static_cast<std::int8_t>(input[i + 2]);
    switch (what % 8) {
      case 0:
        spec.tokens[at].assign(1, input[i + 2]);
        break;
      case 1:
        spec.tokens[at].push_back(input[i + 2]);
        break;
      case 2:
        spec.token_types[at] = value % 8;
        break;
      case 3:
        spec.merges[at % spec.merges.size()].push_back(input[i + 2]);
        break;
      case 4:
        spec.merges.push_back(spec.tokens[at] + ' ' + input[i + 2]);
        break;
      case 5:
        spec.eos_id = value;
        break;
      case 6:
        spec.unknown_id = value;
        break;
      case 7:
        spec.tokens[at].clear();
        break;
    }
  }
  const Result<Tokenizer> made = Tokenizer::create(std::move(spec));
  if (!made) return;
  for (const TokenId id : made->encode(input, {.parse_special = true, .add_bos = true}))
    CHECK(id >= 0 && id < made->vocabulary().size());
}

void stop(std::string_view input) {
  if (input.size() < 4) return;
  Result<StopMatcher> stops = StopMatcher::create(
      {std::string(input.substr(0, 1)), std::string(input.substr(1, 2)), std::string("\n\n")});
  CHECK(stops.ok());
  std::string shown;
  for (const char c : input.substr(3)) shown += stops->feed({&c, 1}).text;
  shown += stops->flush();
  CHECK(input.substr(3).starts_with(shown));
}

}  // namespace
}  // namespace tessera::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::text;
  static const Toys toys;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& tokenizer : toys.tokenizers) {
    round_trip(tokenizer, input);
    if (size > 0) cut_in_segments(tokenizer, input, data[0] % size);
  }
  damage(input);
  stop(input);
  return 0;
}
