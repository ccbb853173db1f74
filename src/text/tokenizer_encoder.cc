#include "text/tokenizer_encoder.h"

#include <algorithm>
#include <cstring>

#include "text/token_normalizer.h"
#include "text/token_spelling.h"
#include "text/token_utf8.h"

namespace tessera::text {
namespace {

constexpr std::size_t kSeenWords = 8192;    // a power of two; 256 KiB
constexpr std::size_t kSeenMaxBytes = 64;   // longer words seldom repeat
constexpr std::size_t kSeenMinText = 4096;  // shorter texts do not pay for the table

std::size_t hash_word(std::string_view word) {
  std::uint64_t h = word.size();
  const char* at = word.data();
  for (std::size_t left = word.size(); left > 0;) {
    const std::size_t n = std::min<std::size_t>(left, 8);
    std::uint64_t part = 0;
    std::memcpy(&part, at, n);
    h = (h ^ part) * 0x9E3779B97F4A7C15;
    h ^= h >> 29;
    at += n;
    left -= n;
  }
  return static_cast<std::size_t>(h ^ (h >> 32));
}

// A space of an escaped vocabulary, plain or already escaped; its length in bytes, else 0.
std::size_t space_length(std::string_view text, std::size_t at) {
  if (text[at] == ' ') return 1;
  return text.substr(at).starts_with(kEscapedSpace) ? kEscapedSpace.size() : 0;
}

}  // namespace

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer, const EncodeOptions& options)
    : tokenizer_(tokenizer), options_(options) {
  if (tokenizer.pretokenizer_) words_.emplace(*tokenizer.pretokenizer_);
}

std::vector<TokenId> Tokenizer::Encoder::run(std::span<const Segment> segments) {
  std::string joined;
  std::string_view text;
  if (segments.size() == 1) {
    text = segments[0].text;
  } else {
    for (const Segment& segment : segments) joined.append(segment.text);
    text = joined;
  }
  if (text.size() >= kSeenMinText) seen_.resize(kSeenWords);
  out_.reserve(text.size() / 4 + 2);
  const bool wants_bos = options_.add_bos && tokenizer_.adds_bos_;
  if (wants_bos) out_.push_back(*tokenizer_.vocabulary_.bos());

  std::size_t at = 0;
  for (std::size_t i = 0; i < segments.size();) {
    const bool trusted = segments[i].trusted;
    std::size_t end = at;
    for (; i < segments.size() && segments[i].trusted == trusted; ++i)
      end += segments[i].text.size();
    if (trusted) encode_trusted(text, at, end);
    at = end;
  }
  end_stretch(text, text.size());
  if (wants_bos && out_.size() > 1 && out_[1] == out_[0]) out_.erase(out_.begin());
  return std::move(out_);
}

// Emits what is known by the end of a trusted part: all up to its last special token. The rest
// belongs to a stretch that may go on in the next part.
void Tokenizer::Encoder::encode_trusted(std::string_view text, std::size_t from, std::size_t to) {
  while (const auto match = tokenizer_.specials_.find(text, from, to)) {
    end_stretch(text, match->begin);
    out_.push_back(match->id);
    stretch_begin_ = from = match->end;
  }
}

void Tokenizer::Encoder::end_stretch(std::string_view text, std::size_t end) {
  encode_stretch(text.substr(stretch_begin_, end - stretch_begin_));
}

void Tokenizer::Encoder::encode_stretch(std::string_view text) {
  if (!words_) return encode_escaped(text);
  if (tokenizer_.wants_nfc_ && options_.normalize) {
    if (std::optional<std::string> nfc = normalize_nfc(text))
      text = normalized_.emplace_back(std::move(*nfc));
  }
  words_->restart(text);
  while (const std::optional<std::string_view> word = words_->next()) encode_word(*word);
}

// Runs of newlines stand alone. Elsewhere a word ends before a space, unless some merge could join
// the two sides.
void Tokenizer::Encoder::encode_escaped(std::string_view text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin;
    if (text[begin] == '\n') {
      end = std::min(text.find_first_not_of('\n', begin), text.size());
      const std::string_view run = text.substr(begin, end - begin);
      const std::optional<TokenId> id = tokenizer_.vocabulary_.find(run);
      if (id && tokenizer_.vocabulary_.is_mergeable(*id)) {
        out_.push_back(*id);
        begin = end;
        continue;
      }
    } else {
      bool after_space = true;
      while (end < text.size() && text[end] != '\n') {
        const std::size_t space = space_length(text, end);
        if (space != 0 && !after_space &&
            !tokenizer_.merges_.joins_space_after(static_cast<std::uint8_t>(text[end - 1])))
          break;
        after_space = space != 0;
        end += space != 0 ? space : 1;
      }
    }
    encode_word(text.substr(begin, end - begin));
    begin = end;
  }
}

void Tokenizer::Encoder::encode_word(std::string_view word) {
  while (word.size() > BpeMerger::kMaxSymbols) {
    merge_word(word.substr(0, BpeMerger::kMaxSymbols));
    word.remove_prefix(BpeMerger::kMaxSymbols);
  }
  if (seen_.empty() || word.size() > kSeenMaxBytes) return merge_word(word);
  SeenWord& seen = seen_[hash_word(word) % kSeenWords];
  if (seen.length == word.size() && std::memcmp(seen.text, word.data(), word.size()) == 0) {
    const std::size_t end = out_.size();
    out_.resize(end + seen.count);
    std::copy_n(out_.begin() + static_cast<std::ptrdiff_t>(seen.begin), seen.count,
                out_.begin() + static_cast<std::ptrdiff_t>(end));
    return;
  }
  const std::size_t begin = out_.size();
  merge_word(word);
  seen = {word.data(), word.size(), begin, out_.size() - begin};
}

void Tokenizer::Encoder::load_bytes(std::string_view word) {
  for (std::size_t i = 0; i < word.size(); ++i)
    merger_.add(tokenizer_.merges_.of_byte(static_cast<std::uint8_t>(word[i])), i);
}

void Tokenizer::Encoder::load_chars(std::string_view word) {
  for (std::size_t at = 0; at < word.size();) {
    const Utf8Char c = next_char(word, at);
    const char32_t spelled = c.code_point == ' ' ? kEscapedSpaceChar : c.code_point;
    merger_.add(c.valid ? tokenizer_.merges_.of_char(spelled) : kNoSymbol, at);
    at += c.length;
  }
}

void Tokenizer::Encoder::merge_word(std::string_view word) {
  merger_.begin_word();
  if (words_) {
    load_bytes(word);
  } else {
    load_chars(word);
  }
  merger_.merge(tokenizer_.merges_);
  const auto n_token = static_cast<Symbol>(tokenizer_.vocabulary_.size());
  for (std::size_t i = 0; i < merger_.size(); ++i) {
    if (merger_.symbol(i) < n_token) {
      out_.push_back(static_cast<TokenId>(merger_.symbol(i)));
      continue;
    }
    const std::size_t end = i + 1 < merger_.size() ? merger_.offset(i + 1) : word.size();
    for (std::size_t at = merger_.offset(i); at < end; ++at)
      out_.push_back(tokenizer_.byte_tokens_[static_cast<std::uint8_t>(word[at])]);
  }
}

}  // namespace tessera::text
