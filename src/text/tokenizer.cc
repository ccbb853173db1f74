#include "text/tokenizer.h"

#include "text/detokenizer.h"
#include "text/token_spelling.h"
#include "text/tokenizer_encoder.h"

namespace tessera::text {

Result<Tokenizer> Tokenizer::create(TokenizerSpec spec) {
  TESSERA_ASSIGN(Vocabulary vocabulary, Vocabulary::create(spec));
  TESSERA_ASSIGN(MergeTable merges, MergeTable::create(vocabulary, spec.merges));
  Tokenizer tokenizer(std::move(vocabulary), std::move(merges));
  const Vocabulary& v = tokenizer.vocabulary_;
  if (v.spelling() == Spelling::byte_level) {
    TESSERA_ASSIGN(tokenizer.pretokenizer_, Pretokenizer::create(spec.pre_tokenizer));
    tokenizer.wants_nfc_ = spec.pre_tokenizer != "laguna";
  }
  // Files of the gemma4 family are known to deny the token that their models need.
  tokenizer.adds_bos_ = v.spelling() == Spelling::space_escaped || spec.add_bos.value_or(false);
  if (tokenizer.adds_bos_ && !v.bos())
    return Error::make(ErrorCode::invalid,
                       "tokenizer asks for a beginning-of-sequence token but names none");
  for (TokenId id = 0; id < v.size(); ++id) {
    if (v.is_special(id)) tokenizer.specials_.add(v.text(id), id);
  }
  TESSERA_TRY(tokenizer.find_byte_tokens());
  return tokenizer;
}

Status Tokenizer::find_byte_tokens() {
  const bool byte_level = vocabulary_.spelling() == Spelling::byte_level;
  for (unsigned value = 0; value < 256; ++value) {
    const auto byte = static_cast<std::uint8_t>(value);
    std::optional<TokenId> id =
        vocabulary_.find(byte_level ? byte_level_alphabet()[value] : spell_byte_token(byte));
    if (id && (vocabulary_.is_special(*id) || vocabulary_.is_never_sampled(*id))) id.reset();
    if (!id) id = vocabulary_.unknown();
    if (!id)
      return Error::make(ErrorCode::invalid,
                         "tokenizer has neither a token for byte 0x{:02X} nor an unknown token",
                         value);
    byte_tokens_[value] = *id;
  }
  return {};
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const Segment whole{text, options.parse_special};
  return encode(std::span(&whole, 1), options);
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments,
                                       const EncodeOptions& options) const {
  return Encoder(*this, options).run(segments);
}

std::string_view Tokenizer::piece(TokenId id, bool show_special) const {
  if (vocabulary_.is_hidden(id) && !show_special) return {};
  return vocabulary_.piece(id);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_special) const {
  std::string bytes;
  for (const TokenId id : ids) bytes.append(piece(id, show_special));
  Detokenizer whole;
  std::string out = whole.feed(bytes);
  out += whole.flush();
  return out;
}

}  // namespace tessera::text
