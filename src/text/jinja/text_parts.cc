// What text methods and filters share.
#include <algorithm>

#include "base/checked.h"
#include "text/jinja/chars.h"
#include "text/jinja/methods.h"

namespace tessera::jinja {

namespace {
std::vector<char32_t> chars_of(std::string_view bytes) {
  std::vector<char32_t> out;
  for (std::size_t at = 0; at < bytes.size();) {
    const Char c = char_at(bytes, at);
    out.push_back(c.code);
    at += c.size;
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool ends_line(char32_t code) {
  return (code >= 0xA && code <= 0xD) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}
}  // namespace

Text strip(const Text& text, const Text* chars, bool at_start, bool at_end) {
  const std::vector<char32_t> wanted =
      chars == nullptr ? std::vector<char32_t>() : chars_of(chars->view());
  const auto strips = [&](char32_t code) {
    return chars == nullptr ? is_space(code)
                            : std::binary_search(wanted.begin(), wanted.end(), code);
  };
  const std::string_view bytes = text.view();
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (at_start && begin < end) {
    const Char c = char_at(bytes, begin);
    if (!strips(c.code)) break;
    begin += c.size;
  }
  while (at_end && end > begin) {
    const Char c = char_before(bytes, end);
    if (!strips(c.code)) break;
    end -= c.size;
  }
  Text out = text.substr(begin, end - begin);
  out.markup = text.markup;
  return out;
}

Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to,
             std::int64_t count) {
  const std::string_view bytes = text.view();
  runtime.meter.scan(bytes.size());
  Text out;
  std::size_t copied = 0;
  std::size_t search = 0;
  while (count != 0) {
    const std::size_t hit = find(bytes, from.view(), search);
    if (hit == std::string_view::npos) break;
    if (count > 0) --count;
    runtime.meter.allocate(to.size());
    runtime.meter.step();
    out.append(text.substr(copied, hit - copied));
    out.append(to);
    copied = hit + from.size();
    search = copied;
    if (!from.empty()) continue;
    // An empty pattern matches before every character and at the end.
    if (hit == bytes.size()) break;
    search = hit + char_at(bytes, hit).size;
  }
  out.append(text.substr(copied));
  return out;
}

Text join(Runtime& runtime, const Text& separator, const std::vector<Text>& parts) {
  Text out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    runtime.meter.allocate(separator.size() + parts[i].size());
    if (i > 0) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

std::vector<Text> split_lines(Meter& meter, const Text& text, bool keep_ends) {
  const std::string_view bytes = text.view();
  std::vector<Text> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const Char c = char_at(bytes, at);
    std::size_t next = at + c.size;
    if (ends_line(c.code)) {
      if (c.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      meter.allocate(sizeof(Text));
      out.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) out.push_back(text.substr(begin));
  return out;
}

std::vector<Text> split_words(Meter& meter, const Text& text, std::int64_t max_splits) {
  const std::string_view bytes = text.view();
  std::vector<Text> out;
  std::size_t at = 0;
  const auto skip_while = [&](bool space) {
    while (at < bytes.size()) {
      const Char c = char_at(bytes, at);
      if (is_space(c.code) != space) break;
      at += c.size;
    }
  };
  while (true) {
    skip_while(true);
    if (at >= bytes.size()) return out;
    if (max_splits >= 0 && out.size() == static_cast<std::size_t>(max_splits)) {
      out.push_back(text.substr(at));
      return out;
    }
    meter.allocate(sizeof(Text));
    const std::size_t begin = at;
    skip_while(false);
    out.push_back(text.substr(begin, at - begin));
  }
}

Text padded(Runtime& runtime, const Text& text, std::size_t left, std::size_t right,
            const Text& fill) {
  const auto pads = checked_add(left, right);
  const auto bytes =
      pads ? checked_mul(*pads, std::max<std::size_t>(fill.size(), 1)) : std::nullopt;
  if (!bytes) Meter::exceeded("bytes of values", runtime.meter.limits().max_allocated_bytes);
  runtime.meter.allocate(*bytes);
  Text out;
  for (std::size_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (std::size_t i = 0; i < right; ++i) out.append(fill);
  return out;
}

Text centered(Runtime& runtime, const Text& text, std::int64_t width, const Text& fill) {
  const auto size = static_cast<std::int64_t>(count_chars(text.view()));
  if (width <= size) return text;
  const std::int64_t missing = width - size;
  // An odd rest goes left when the width is odd, as in Python.
  const auto left = static_cast<std::size_t>(missing / 2 + (missing & width & 1));
  return padded(runtime, text, left, static_cast<std::size_t>(missing) - left, fill);
}

}  // namespace tessera::jinja
