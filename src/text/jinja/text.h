// Text: immutable-by-convention UTF-8 bytes that remember where they came from.
//
// Every byte is trusted (written by the template, or a token text of the model) or not (anything
// that a message, a tool or a request variable said). Only trusted bytes may become special tokens.
// substr and append keep the provenance of each byte exactly, so every operation that is made of
// them (slices, strip, split, replace, join, indent) does too. Operations that rewrite characters
// (upper, title, repr, tojson) give text that is trusted only if all of their input was.
//
// Positions are byte offsets; chars.h turns character indexes into them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_trusted_(trusted) {}

  std::string_view view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // True when no byte is untrusted; so for the empty text.
  bool all_trusted() const { return bytes_.empty() || (first_trusted_ && cuts_.empty()); }

  // The bytes [position, position + count), clipped to the end.
  Text substr(std::size_t position, std::size_t count = std::string_view::npos) const;
  void append(const Text& other);
  void append(std::string_view bytes, bool trusted);

  // Calls visit(std::string_view bytes, bool trusted) for each maximal run, in order.
  template <typename Visit>
  void for_each_run(Visit visit) const {
    std::size_t begin = 0;
    bool trusted = first_trusted_;
    for (std::size_t i = 0; i <= cuts_.size(); ++i) {
      const std::size_t end = i < cuts_.size() ? cuts_[i] : bytes_.size();
      if (end > begin) visit(view().substr(begin, end - begin), trusted);
      begin = end;
      trusted = !trusted;
    }
  }

  // Marked as safe markup: `+` with such a text escapes its other side (Python's Markup).
  bool markup = false;

 private:
  bool trusted_at_end() const { return first_trusted_ == (cuts_.size() % 2 == 0); }

  std::string bytes_;
  bool first_trusted_ = true;
  std::vector<std::size_t> cuts_;  // offsets where the trust flips, ascending, inside bytes_
};

}  // namespace tessera::jinja
