#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/chars.h"

namespace tessera::jinja {
namespace {

constexpr std::size_t npos = std::string_view::npos;

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

int digit_value(char c) {
  if (is_ascii_digit(c)) return c - '0';
  const char lowered = static_cast<char>(c | 0x20);
  return lowered >= 'a' && lowered <= 'f' ? lowered - 'a' + 10 : 99;
}

// Every line end as \n, and without the last one.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (!is_space(c.code)) break;
    at += c.size;
  }
  return at;
}

std::string_view strip_end(std::string_view text) {
  while (!text.empty()) {
    const Char c = char_before(text, text.size());
    if (!is_space(c.code)) break;
    text.remove_suffix(c.size);
  }
  return text;
}

class Lexer {
 public:
  Lexer(std::string source, int& line) : source_(std::move(source)), line_(line) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view text) const { return rest().starts_with(text); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  void advance_to(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void push(Kind kind, std::string_view text) {
    tokens_.push_back(Token{kind, std::string(text), line_});
  }

  void push_data(std::string_view text) {
    if (!text.empty()) push(Kind::data, text);
  }

  // The template text from at_ up to the tag at `tag`, less what the tag strips.
  void data_before(std::size_t tag, bool strips_indent) {
    std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      data = strip_end(data);
    } else if (sign != '+' && strips_indent) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t start = newline == npos ? 0 : newline + 1;
      const bool at_line_start = newline != npos || line_starting_;
      if (at_line_start && skip_spaces(data, start) == data.size()) data = data.substr(0, start);
    }
    push_data(data);
    advance_to(tag);
  }

  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == npos || tag + 1 >= source_.size()) break;
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    if (tag == npos || tag + 1 >= source_.size()) {
      push_data(rest());
      advance_to(source_.size());
      return;
    }
    const char opener = source_[tag + 1];
    data_before(tag, opener != '{');
    if (opener == '%' && raw_block()) return;
    const char sign = peek(2);
    const std::size_t inside = at_ + (sign == '-' || sign == '+' ? 3 : 2);
    if (opener == '#') return comment(inside);
    push(opener == '%' ? Kind::block_begin : Kind::variable_begin, "");
    advance_to(inside);
    expression(opener == '%');
  }

  void finish_tag() { line_starting_ = at_ > 0 && source_[at_ - 1] == '\n'; }

  // The end of a tag that closes with `closer` at `position`: past it and what it trims.
  // Nothing if there is no such end there.
  std::size_t closing(std::size_t position, std::string_view closer, bool trims_newline) const {
    const std::string_view text = std::string_view(source_).substr(position);
    const std::size_t size = closer.size();
    if (text.starts_with(closer)) {
      const bool newline = trims_newline && text.size() > size && text[size] == '\n';
      return position + size + (newline ? 1 : 0);
    }
    if (text.empty() || text.substr(1, size) != closer) return npos;
    if (text[0] == '-') return skip_spaces(source_, position + 1 + size);
    if (text[0] == '+' && trims_newline) return position + 1 + size;
    return npos;
  }

  void comment(std::size_t inside) {
    std::size_t end = source_.find("#}", inside);
    if (end == npos) fail("missing end of comment tag");
    const bool signed_end = end > inside && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance_to(closing(signed_end ? end - 1 : end, "#}", true));
    finish_tag();
  }

  // The position after `word` in a tag that opens at `tag`, or npos.
  std::size_t after_word(std::size_t tag, std::string_view word) const {
    std::size_t at = tag + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_spaces(source_, at);
    if (std::string_view(source_).substr(at, word.size()) != word) return npos;
    return skip_spaces(source_, at + word.size());
  }

  bool raw_block() {
    std::size_t body = after_word(at_, "raw");
    if (body == npos) return false;
    // Unlike other block tags this one never eats the newline after it.
    body = closing(body, "%}", false);
    if (body == npos) return false;
    advance_to(body);
    for (std::size_t tag = body; (tag = source_.find("{%", tag)) != npos; ++tag) {
      std::size_t end = after_word(tag, "endraw");
      if (end != npos) end = closing(end, "%}", true);
      if (end == npos) continue;
      line_starting_ = false;
      data_before(tag, true);
      advance_to(end);
      finish_tag();
      return true;
    }
    fail("missing end of raw block");
  }

  void expression(bool block) {
    const std::string_view closer = block ? "%}" : "}}";
    std::vector<char> open;
    while (true) {
      if (open.empty()) {
        if (const std::size_t end = closing(at_, closer, block); end != npos) {
          push(block ? Kind::block_end : Kind::variable_end, "");
          advance_to(end);
          finish_tag();
          return;
        }
      }
      if (at_ >= source_.size()) fail("missing '{}'", closer);
      token(open);
    }
  }

  void token(std::vector<char>& open) {
    const Char c = char_at(source_, at_);
    if (is_space(c.code)) return advance_to(skip_spaces(source_, at_));
    if (c.code < 0x80 && is_ascii_digit(source_[at_])) return number();
    if (is_name_start(c.code)) return name();
    if (c.code == '\'' || c.code == '"') return string();
    op(open);
  }

  void name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const Char c = char_at(source_, end);
      if (!is_name_part(c.code)) break;
      end += c.size;
    }
    push(Kind::name, rest().substr(0, end - at_));
    advance_to(end);
  }

  // The end of a run of digits of the base with single underscores between them; `from` if none.
  std::size_t digits(std::size_t from, int base) const {
    std::size_t end = from;
    std::size_t at = from;
    while (at < source_.size()) {
      if (source_[at] == '_' && at > from) ++at;
      if (at >= source_.size() || digit_value(source_[at]) >= base) break;
      end = ++at;
    }
    return end;
  }

  void number() {
    const char prefix = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
      const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
      std::size_t from = at_ + 2;
      if (from < source_.size() && source_[from] == '_') ++from;
      const std::size_t end = digits(from, base);
      if (end > from) return push_number(Kind::integer, end);
    }
    const std::size_t whole = digits(at_, 10);
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    std::size_t end = whole;
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.') {
        const std::size_t fraction = digits(end + 1, 10);
        if (fraction > end + 1) end = fraction;
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        std::size_t from = end + 1;
        if (from < source_.size() && (source_[from] == '+' || source_[from] == '-')) ++from;
        const std::size_t exponent = digits(from, 10);
        if (exponent > from) end = exponent;
      }
    }
    if (end > whole) return push_number(Kind::real, end);
    // A decimal integer other than zero has no leading zeros: 007 reads as 00 and 7.
    std::size_t stop = whole;
    if (peek() == '0') {
      stop = at_ + 1;
      while (stop < whole && (source_[stop] == '0' || source_[stop] == '_')) ++stop;
      if (source_[stop - 1] == '_') --stop;
    }
    push_number(Kind::integer, stop);
  }

  void push_number(Kind kind, std::size_t end) {
    std::string text(rest().substr(0, end - at_));
    std::erase(text, '_');
    push(kind, text);
    advance_to(end);
  }

  void string() {
    const char quote = peek();
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("missing end of the string");
    push(Kind::string, decode(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance_to(end + 1);
  }

  static std::string decode(std::string_view body) {
    std::string out;
    for (std::size_t i = 0; i < body.size();) {
      if (body[i] != '\\') {
        out += body[i++];
        continue;
      }
      i = escape_sequence(body, i + 1, out);
    }
    return out;
  }

  // Decodes what follows a backslash at body[i]; returns the position after it.
  static std::size_t escape_sequence(std::string_view body, std::size_t i, std::string& out) {
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = body[i];
    if (const std::size_t hit = kNames.find(c); hit != npos) {
      out += kValues[hit];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c >= '0' && c <= '7') {
      std::size_t end = i;
      while (end < body.size() && end < i + 3 && body[end] >= '0' && body[end] <= '7') ++end;
      append_char(out, code_point(body.substr(i, end - i), 8));
      return end;
    }
    const std::size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') fail("named characters (\\N) are not supported in strings");
    if (wanted == 0) {
      out += '\\';
      return i;
    }
    if (i + wanted >= body.size()) fail("truncated \\{} escape in a string", c);
    append_char(out, code_point(body.substr(i + 1, wanted), 16));
    return i + 1 + wanted;
  }

  static char32_t code_point(std::string_view digits, int base) {
    std::uint32_t code = 0;
    for (const char d : digits) {
      if (digit_value(d) >= base) fail("bad digit in an escape of a string");
      code = code * static_cast<std::uint32_t>(base) + static_cast<std::uint32_t>(digit_value(d));
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("the escape of a string names no character");
    return code;
  }

  void op(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 27> kOps = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const std::string_view candidate : kOps) {
      if (!looking_at(candidate)) continue;
      const char c = candidate[0];
      if (c == '!' && candidate.size() == 1) break;
      if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) fail("unexpected '{}'", c);
        if (open.back() != c) fail("unexpected '{}', expected '{}'", c, open.back());
        open.pop_back();
      }
      push(Kind::op, candidate);
      return advance_to(at_ + candidate.size());
    }
    fail("unexpected character '{}'", rest().substr(0, char_at(source_, at_).size));
  }

  std::string source_;
  int& line_;
  std::size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int& line) {
  line = 1;
  if (!valid_utf8(source)) fail("the template is not valid UTF-8");
  return Lexer(normalized(source), line).run();
}

}  // namespace tessera::jinja
