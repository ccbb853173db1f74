// Text in lines that a terminal shows whole, broken between words.
//
//   print_out(wrapped(plan_table(plan)));   // also where nobody looks at a terminal
//
// A word that is longer than a line stays whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::cli {

struct WrapOptions {
  std::size_t indent = 0;  // of the lines after the first
  std::size_t start = 0;   // the column that the text begins at
  std::size_t width = 80;
};

// Appends the words of one line, without its end.
void append_wrapped(std::string& out, std::string_view line, const WrapOptions& options);

// Each line that is too long goes on two columns further in than it begins.
std::string wrapped(std::string_view text);

}  // namespace tessera::cli
