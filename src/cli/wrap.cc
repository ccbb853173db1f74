#include "cli/wrap.h"

#include <algorithm>

namespace tessera::cli {

void append_wrapped(std::string& out, std::string_view line, const WrapOptions& options) {
  std::size_t column = options.start;
  bool first = true;
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), word.size() + 1));
    if (!first && column + 1 + word.size() > options.width) {
      out += "\n" + std::string(options.indent, ' ');
      column = options.indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    first = false;
  }
}

std::string wrapped(std::string_view text) {
  constexpr std::size_t kFurther = 2;
  std::string out;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    out += line.substr(0, begin);
    append_wrapped(out, line.substr(begin), {.indent = begin + kFurther, .start = begin});
    out += '\n';
  }
  return out;
}

}  // namespace tessera::cli
