#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <span>

#include "text/token_spelling.h"

namespace tessera::text {
namespace {

// Texts that end a turn or a document, by family. Files name one or two of them at most.
constexpr std::array<std::string_view, 5> kQwenEnds = {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>",
                                                       "<|repo_name|>", "<|file_sep|>"};
constexpr std::array<std::string_view, 2> kLagunaEnds = {"\xE3\x80\x88|EOS|\xE3\x80\x89",
                                                         "</assistant>"};
constexpr std::array<std::string_view, 3> kGemmaEnds = {"<eos>", "<turn|>", "<|tool_response>"};

// Markup of tool calls and thoughts that must reach the output parser; older files hide it.
constexpr std::array<std::string_view, 7> kGemmaVisible = {
    "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", "<|\"|>"};

std::span<const std::string_view> family_ends(const TokenizerSpec& spec) {
  if (spec.model == "gemma4") return kGemmaEnds;
  if (spec.pre_tokenizer == "laguna") return kLagunaEnds;
  return kQwenEnds;
}

}  // namespace

bool is_filler(std::string_view text, TokenId id) {
  return text.starts_with("[PAD") && text == fmt::format("[PAD{}]", id);
}

Result<Vocabulary> Vocabulary::create(TokenizerSpec& spec) {
  Vocabulary v;
  if (spec.model == "gpt2") {
    v.spelling_ = Spelling::byte_level;
  } else if (spec.model == "gemma4") {
    v.spelling_ = Spelling::space_escaped;
  } else {
    return Error::make(ErrorCode::unsupported,
                       "tokenizer model '{}' is not supported; supported are gpt2 and gemma4",
                       spec.model);
  }
  TESSERA_TRY(v.take_tokens(spec));
  TESSERA_TRY(v.take_ids(spec));
  v.apply_family_rules(spec);
  TESSERA_TRY(v.set_flags());
  v.spell_pieces();
  return v;
}

Status Vocabulary::take_tokens(TokenizerSpec& spec) {
  const std::size_t n = spec.tokens.size();
  if (n == 0) return Error::make(ErrorCode::invalid, "tokenizer has no tokens");
  if (n > kMaxTokens)
    return Error::make(ErrorCode::invalid, "tokenizer has {} tokens; at most {} are supported", n,
                       kMaxTokens);
  if (!spec.token_types.empty() && spec.token_types.size() != n)
    return Error::make(ErrorCode::invalid,
                       "tokenizer has {} token types for {} tokens; the numbers must be equal",
                       spec.token_types.size(), n);
  if (!spec.scores.empty() && spec.scores.size() != n)
    return Error::make(ErrorCode::invalid,
                       "tokenizer has {} scores for {} tokens; the numbers must be equal",
                       spec.scores.size(), n);
  for (std::size_t id = 0; id < n; ++id) {
    if (spec.tokens[id].size() > kMaxTokenBytes)
      return Error::make(ErrorCode::invalid, "token {} has {} bytes; at most {} are supported", id,
                         spec.tokens[id].size(), kMaxTokenBytes);
  }
  for (std::size_t id = 0; id < spec.token_types.size(); ++id) {
    const std::int32_t type = spec.token_types[id];
    if (type < 1 || type > 6)
      return Error::make(ErrorCode::invalid, "token {} has type {}; types are 1 to 6", id, type);
  }
  tokens_ = std::move(spec.tokens);
  types_.assign(n, TokenType::normal);
  std::transform(spec.token_types.begin(), spec.token_types.end(), types_.begin(),
                 [](std::int32_t type) { return static_cast<TokenType>(type); });
  by_text_.reserve(n);
  for (std::size_t id = 0; id < n; ++id)
    by_text_.insert_or_assign(tokens_[id], static_cast<TokenId>(id));
  return {};
}

Status Vocabulary::take_ids(const TokenizerSpec& spec) {
  const auto check = [&](std::string_view what, std::int64_t id) -> Status {
    if (id >= 0 && id < size()) return {};
    return Error::make(ErrorCode::invalid, "tokenizer's {} id {} is outside the {} tokens", what,
                       id, size());
  };
  const auto take = [&](std::string_view what, const std::optional<std::int64_t>& from,
                        std::optional<TokenId>& to) -> Status {
    if (!from) return {};
    TESSERA_TRY(check(what, *from));
    to = static_cast<TokenId>(*from);
    return {};
  };
  std::optional<TokenId> eot;
  TESSERA_TRY(take("bos", spec.bos_id, bos_));
  TESSERA_TRY(take("eos", spec.eos_id, eos_));
  TESSERA_TRY(take("eot", spec.eot_id, eot));
  TESSERA_TRY(take("unknown", spec.unknown_id, unknown_));
  TESSERA_TRY(take("padding", spec.padding_id, padding_));
  if (eos_) eog_ids_.push_back(*eos_);
  if (eot) eog_ids_.push_back(*eot);
  for (const std::int64_t id : spec.extra_eog_ids) {
    TESSERA_TRY(check("end-of-generation", id));
    eog_ids_.push_back(static_cast<TokenId>(id));
  }
  return {};
}

void Vocabulary::apply_family_rules(const TokenizerSpec& spec) {
  for (const std::string_view text : family_ends(spec)) {
    const std::optional<TokenId> id = find(text);
    if (!id) continue;
    eog_ids_.push_back(*id);
    TokenType& type = types_[static_cast<std::size_t>(*id)];
    if (type == TokenType::normal) type = TokenType::control;
  }
  std::sort(eog_ids_.begin(), eog_ids_.end());
  eog_ids_.erase(std::unique(eog_ids_.begin(), eog_ids_.end()), eog_ids_.end());
  if (spelling_ != Spelling::space_escaped) return;
  for (const std::string_view text : kGemmaVisible) {
    if (const std::optional<TokenId> id = find(text))
      types_[static_cast<std::size_t>(*id)] = TokenType::user_defined;
  }
}

Status Vocabulary::set_flags() {
  flags_.assign(tokens_.size(), 0);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    TokenType& type = types_[i];
    if (is_filler(tokens_[i], id)) type = TokenType::unused;
    unsigned flags = 0;
    if (type == TokenType::control || type == TokenType::unknown || type == TokenType::unused)
      flags |= kHidden;
    if (type == TokenType::unused) flags |= kNeverSampled;
    if (type == TokenType::normal || type == TokenType::user_defined) flags |= kMergeable;
    if ((type == TokenType::control || type == TokenType::user_defined) && !tokens_[i].empty()) {
      if (tokens_[i].size() > kMaxSpecialBytes)
        return Error::make(ErrorCode::invalid,
                           "special token {} has {} bytes; at most {} are supported", i,
                           tokens_[i].size(), kMaxSpecialBytes);
      flags |= kSpecial;
    }
    if (std::binary_search(eog_ids_.begin(), eog_ids_.end(), id)) flags |= kEog;
    flags_[i] = static_cast<std::uint8_t>(flags);
  }
  return {};
}

void Vocabulary::spell_pieces() {
  piece_begin_.reserve(tokens_.size() + 1);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    piece_begin_.push_back(pieces_.size());
    const std::string& token = tokens_[i];
    if (types_[i] == TokenType::byte) {
      if (const std::optional<std::uint8_t> byte = parse_byte_token(token)) {
        pieces_.push_back(static_cast<char>(*byte));
      } else {
        pieces_.append(token);
      }
    } else if (types_[i] != TokenType::normal) {
      pieces_.append(token);
    } else if (spelling_ == Spelling::byte_level) {
      append_byte_level(token, pieces_);
    } else {
      append_unescaped(token, pieces_);
    }
  }
  piece_begin_.push_back(pieces_.size());
  pieces_.shrink_to_fit();
}

std::string_view Vocabulary::text(TokenId id) const {
  return in_table(id) ? std::string_view(tokens_[static_cast<std::size_t>(id)])
                      : std::string_view();
}

TokenType Vocabulary::type(TokenId id) const {
  return in_table(id) ? types_[static_cast<std::size_t>(id)] : TokenType::unused;
}

std::string_view Vocabulary::piece(TokenId id) const {
  if (!in_table(id)) return {};
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(pieces_).substr(piece_begin_[i], piece_begin_[i + 1] - piece_begin_[i]);
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = by_text_.find(text);
  if (found == by_text_.end()) return std::nullopt;
  return found->second;
}

}  // namespace tessera::text
