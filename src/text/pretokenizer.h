// Pretokenizer: cuts text into the words that byte-pair merging works on, one scheme per family.
//
//   TESSERA_ASSIGN(Pretokenizer qwen, Pretokenizer::create("qwen2"));
//   Pretokenizer::Words words(qwen, "Hello world\n");
//   while (std::optional<std::string_view> word = words.next()) ...   // "Hello", " world", "\n"
//
// The words are views of the text, in order and without gaps. Any bytes are accepted: a run of
// ill-formed UTF-8 is a word of its own, and what is on both sides of it is cut as separate texts.
// Time is linear. Should the expression matcher give up on a stretch (its limits are bounded), the
// rest of the stretch is one word. A Pretokenizer is immutable and may be shared by threads; a
// Words belongs to one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace tessera::text {

class Pretokenizer {
 public:
  // "qwen2", "qwen35" or "laguna".
  static Result<Pretokenizer> create(std::string_view name);

  class Words;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };

  Pretokenizer() = default;

  std::unique_ptr<pcre2_real_code_8, CodeDeleter> expression_;
  bool compiled_ = false;       // to machine code
  bool cuts_newlines_ = false;  // runs of newlines are cut off before the expression is applied
};

class Pretokenizer::Words {
 public:
  // Both arguments must outlive the object.
  Words(const Pretokenizer& pretokenizer, std::string_view text = {});

  void restart(std::string_view text);
  std::optional<std::string_view> next();

 private:
  struct MatchDeleter {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
  };

  std::size_t match_end();
  std::string_view take(std::size_t end);

  const Pretokenizer& pretokenizer_;
  std::unique_ptr<pcre2_real_match_data_8, MatchDeleter> match_;
  std::unique_ptr<pcre2_real_match_context_8, MatchDeleter> limits_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t valid_end_ = 0;    // text_[at_, valid_end_) is well-formed
  std::size_t stretch_end_ = 0;  // what the expression sees ends here
};

}  // namespace tessera::text
