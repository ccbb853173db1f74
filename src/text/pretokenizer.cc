#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include "base/check.h"
#include "text/token_utf8.h"

namespace tessera::text {
namespace {

// The alternatives of the Qwen2 family, in order: contractions, a word with at most one leading
// character, one digit, symbols with the newlines after them, blank lines, blanks up to the one
// that belongs to the next word, blanks. White_Space is spelled out because \s also takes U+180E.
#define TESSERA_BLANK "\\p{White_Space}"
constexpr std::string_view kQwen2 =
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
    "|\\p{N}"
    "| ?[^" TESSERA_BLANK
    "\\p{L}\\p{N}]+[\\r\\n]*"
    "|" TESSERA_BLANK
    "*[\\r\\n]+"
    "|" TESSERA_BLANK
    "+(?!\\P{White_Space})"
    "|" TESSERA_BLANK "+";
// The same with combining marks as part of words.
constexpr std::string_view kQwen35 =
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+"
    "|\\p{N}"
    "| ?[^" TESSERA_BLANK
    "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
    "|" TESSERA_BLANK
    "*[\\r\\n]+"
    "|" TESSERA_BLANK
    "+(?!\\P{White_Space})"
    "|" TESSERA_BLANK "+";
#undef TESSERA_BLANK

struct Scheme {
  std::string_view name;
  std::string_view expression;
  bool cuts_newlines;
};
constexpr std::array<Scheme, 3> kSchemes = {{
    {"qwen2", kQwen2, false},
    {"qwen35", kQwen35, false},
    {"laguna", kQwen2, true},
}};

// Far above what a well-behaved match of a very long run needs.
constexpr std::uint32_t kMatchLimit = 1'000'000'000;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;

}  // namespace

void Pretokenizer::CodeDeleter::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}

void Pretokenizer::Words::MatchDeleter::operator()(pcre2_match_data* data) const {
  pcre2_match_data_free(data);
}
void Pretokenizer::Words::MatchDeleter::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}

Result<Pretokenizer> Pretokenizer::create(std::string_view name) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name != name) continue;
    Pretokenizer pretokenizer;
    int error = 0;
    PCRE2_SIZE where = 0;
    pretokenizer.expression_.reset(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(scheme.expression.data()), scheme.expression.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, nullptr));
    if (!pretokenizer.expression_)
      return Error::make(ErrorCode::internal,
                         "PCRE2 error {} at {} of the pre-tokenizer expression '{}'; "
                         "PCRE2 10.40 or newer is needed",
                         error, where, name);
    // Where executable memory is forbidden the expression is interpreted.
    pretokenizer.compiled_ =
        pcre2_jit_compile(pretokenizer.expression_.get(), PCRE2_JIT_COMPLETE) == 0;
    pretokenizer.cuts_newlines_ = scheme.cuts_newlines;
    return pretokenizer;
  }
  return Error::make(ErrorCode::unsupported,
                     "pre-tokenizer '{}' is not supported; supported are qwen2, qwen35 and laguna",
                     name);
}

Pretokenizer::Words::Words(const Pretokenizer& pretokenizer, std::string_view text)
    : pretokenizer_(pretokenizer),
      match_(pcre2_match_data_create(1, nullptr)),
      limits_(pcre2_match_context_create(nullptr)) {
  CHECK(match_ && limits_, "no memory for a match");
  pcre2_set_match_limit(limits_.get(), kMatchLimit);
  pcre2_set_heap_limit(limits_.get(), kHeapLimitKiB);
  restart(text);
}

void Pretokenizer::Words::restart(std::string_view text) {
  text_ = text;
  at_ = valid_end_ = stretch_end_ = 0;
}

std::string_view Pretokenizer::Words::take(std::size_t end) {
  const std::string_view word = text_.substr(at_, end - at_);
  at_ = end;
  return word;
}

std::optional<std::string_view> Pretokenizer::Words::next() {
  if (at_ == text_.size()) return std::nullopt;
  if (at_ == valid_end_) {
    valid_end_ = valid_utf8_end(text_, at_);
    stretch_end_ = at_;
    if (at_ == valid_end_) {
      std::size_t end = at_;
      while (end < text_.size()) {
        const Utf8Char c = next_char(text_, end);
        if (c.valid) break;
        end += c.length;
      }
      valid_end_ = end;
      return take(end);
    }
  }
  if (at_ == stretch_end_) {
    stretch_end_ = valid_end_;
    if (pretokenizer_.cuts_newlines_) {
      const std::string_view rest = text_.substr(0, valid_end_);
      const bool newlines = rest[at_] == '\n';
      const std::size_t cut = newlines ? rest.find_first_not_of('\n', at_) : rest.find('\n', at_);
      if (cut != std::string_view::npos) stretch_end_ = cut;
    }
  }
  return take(match_end());
}

std::size_t Pretokenizer::Words::match_end() {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data() + at_);
  const std::size_t length = stretch_end_ - at_;
  const pcre2_code* code = pretokenizer_.expression_.get();
  const int result =
      pretokenizer_.compiled_
          ? pcre2_jit_match(code, subject, length, 0, 0, match_.get(), limits_.get())
          : pcre2_match(code, subject, length, 0, PCRE2_NO_UTF_CHECK, match_.get(), limits_.get());
  if (result < 0) return stretch_end_;
  const std::size_t end = pcre2_get_ovector_pointer(match_.get())[1];
  CHECK(end > 0 && end <= length);
  return at_ + end;
}

}  // namespace tessera::text
