// The lexer: template source to tokens, with the whitespace rules of chat templates applied
// (a block tag eats the line's indent before it and the newline after it; `-` and `+` override).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/limits.h"

namespace tessera::jinja {

struct Token {
  enum class Kind {
    data,            // text outside of tags
    variable_begin,  // {{
    variable_end,    // }}
    block_begin,     // {%
    block_end,       // %}
    name,
    string,   // text is the decoded value
    integer,  // text is as written
    real,     // text is as written
    op,
    end,
  };
  Kind kind = Kind::end;
  std::string text;
  int line = 1;

  bool is_op(std::string_view op) const { return kind == Kind::op && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
};

// Raises a Failure; `line` is then where it happened. The last token is always Kind::end.
std::vector<Token> tokenize(std::string_view source, int& line);

}  // namespace tessera::jinja
