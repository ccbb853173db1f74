// The methods of str, made of substrings so that each byte keeps its provenance.
#include <algorithm>
#include <array>

#include "text/jinja/chars.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Rewrite = std::string (*)(std::string_view);

template <Rewrite rewrite>
Value rewritten(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("str method", args, {});
  Text out(rewrite(self.view()), self.text().all_trusted());
  out.markup = self.text().markup;
  return runtime.text(std::move(out));
}

template <bool at_start, bool at_end>
Value strip_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("strip", args, {"chars"});
  return runtime.text(strip(self.text(), bound.text(0), at_start, at_end));
}

Value texts(Runtime& runtime, std::vector<Text> parts,
            List::Flavour flavour = List::Flavour::list) {
  std::vector<Value> out;
  out.reserve(parts.size());
  for (Text& part : parts) out.push_back(runtime.text(std::move(part)));
  return runtime.list(std::move(out), flavour);
}

std::vector<Text> split_words_from_end(Meter& meter, const Text& text, std::int64_t max_splits) {
  std::vector<Text> out;
  Text rest = strip(text, nullptr, false, true);
  while (!rest.empty()) {
    meter.allocate(sizeof(Text) + rest.size());
    std::size_t begin = rest.size();
    while (begin > 0) {
      const Char c = char_before(rest.view(), begin);
      if (is_space(c.code)) break;
      begin -= c.size;
    }
    if (max_splits == 0 || begin == 0) {
      out.push_back(std::move(rest));
      break;
    }
    if (max_splits > 0) --max_splits;
    out.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), nullptr, false, true);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// Every hit is charged for the piece of text that it will make.
std::vector<std::size_t> occurrences(Meter& meter, std::string_view bytes,
                                     std::string_view needle) {
  std::vector<std::size_t> hits;
  std::size_t at = find(bytes, needle);
  while (at != std::string_view::npos) {
    meter.allocate(sizeof(Text) + sizeof(at));
    hits.push_back(at);
    at = find(bytes, needle, at + needle.size());
  }
  return hits;
}

std::vector<std::size_t> occurrences_from_end(Meter& meter, std::string_view bytes,
                                              std::string_view needle) {
  const std::string reversed(bytes.rbegin(), bytes.rend());
  const std::string wanted(needle.rbegin(), needle.rend());
  std::vector<std::size_t> hits = occurrences(meter, reversed, wanted);
  for (std::size_t& hit : hits) hit = bytes.size() - hit - needle.size();
  return hits;
}

template <bool from_end>
Value split_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("split", args, {"sep", "maxsplit"});
  const Text& text = self.text();
  const Text* separator = bound.text(0);
  const std::int64_t limit = bound.integer(1, -1);
  runtime.meter.scan(text.size());
  if (separator == nullptr)
    return texts(runtime, from_end && limit >= 0 ? split_words_from_end(runtime.meter, text, limit)
                                                 : split_words(runtime.meter, text, limit));
  if (separator->empty()) fail("empty separator");
  std::vector<std::size_t> hits =
      from_end ? occurrences_from_end(runtime.meter, text.view(), separator->view())
               : occurrences(runtime.meter, text.view(), separator->view());
  if (limit >= 0 && hits.size() > static_cast<std::size_t>(limit))
    hits.resize(static_cast<std::size_t>(limit));
  if (from_end) std::reverse(hits.begin(), hits.end());
  std::vector<Text> out;
  std::size_t begin = 0;
  for (const std::size_t hit : hits) {
    out.push_back(text.substr(begin, hit - begin));
    begin = hit + separator->size();
  }
  out.push_back(text.substr(begin));
  return texts(runtime, std::move(out));
}

template <bool from_end>
Value partition_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("partition", args, {"sep"}, 1);
  const Text& text = self.text();
  const Text* separator = bound.text(0);
  if (separator == nullptr || separator->empty()) fail("empty separator");
  runtime.meter.scan(text.size());
  const std::size_t hit =
      from_end ? rfind(text.view(), separator->view()) : find(text.view(), separator->view());
  if (hit == std::string_view::npos)
    return from_end ? texts(runtime, {{}, {}, text}, List::Flavour::tuple)
                    : texts(runtime, {text, {}, {}}, List::Flavour::tuple);
  return texts(runtime, {text.substr(0, hit), *separator, text.substr(hit + separator->size())},
               List::Flavour::tuple);
}

// The part of the text that the arguments start and end (numbers 1 and 2) select; nothing if the
// start lies beyond the end of the text.
struct Window {
  std::string_view bytes;
  std::size_t first_char = 0;
  bool valid = true;
};

Window window(Runtime& runtime, std::string_view bytes, const Bound& bound) {
  runtime.meter.scan(bytes.size());
  if (bound[1] == nullptr && bound[2] == nullptr) return {bytes};
  const auto size = static_cast<std::int64_t>(count_chars(bytes));
  const auto index = [&](std::size_t i, std::int64_t otherwise) {
    if (bound[i] == nullptr || bound[i]->is(Value::Kind::none)) return otherwise;
    const std::int64_t v = bound.integer(i, 0);
    return v < 0 ? std::max<std::int64_t>(v + size, 0) : v;
  };
  const std::int64_t start = index(1, 0);
  const std::int64_t stop = std::min(index(2, size), size);
  if (start > stop) return {{}, 0, false};
  const std::size_t begin = offset_of(bytes, static_cast<std::size_t>(start));
  const std::size_t end = offset_of(bytes, static_cast<std::size_t>(stop));
  return {bytes.substr(begin, end - begin), static_cast<std::size_t>(start)};
}

template <bool at_end>
Value affix_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound(at_end ? "endswith" : "startswith", args, {"prefix", "start", "end"}, 1);
  const Window part = window(runtime, self.view(), bound);
  const auto matches = [&part](const Value& affix) {
    if (!affix.is_text())
      fail("startswith and endswith need a str or a tuple of str, not {}", type_name(affix));
    if (!part.valid) return false;
    return at_end ? part.bytes.ends_with(affix.view()) : part.bytes.starts_with(affix.view());
  };
  const Value& affix = *bound[0];
  if (!affix.is(Value::Kind::list) || affix.list().flavour != List::Flavour::tuple)
    return Value(matches(affix));
  return Value(std::any_of(affix.list().elements.begin(), affix.list().elements.end(), matches));
}

template <bool from_end, bool must_exist>
Value find_method_of_text(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("find", args, {"sub", "start", "end"}, 1);
  const Text* needle = bound.text(0);
  if (needle == nullptr) fail("find() needs a string");
  const Window part = window(runtime, self.view(), bound);
  const std::size_t hit = !part.valid ? std::string_view::npos
                          : from_end  ? rfind(part.bytes, needle->view())
                                      : find(part.bytes, needle->view());
  if (hit == std::string_view::npos && must_exist) fail("substring not found");
  if (hit == std::string_view::npos) return Value(std::int64_t{-1});
  return Value::count(part.first_char + count_chars(part.bytes.substr(0, hit)));
}

Value count_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("count", args, {"sub", "start", "end"}, 1);
  const Text* needle = bound.text(0);
  if (needle == nullptr) fail("count() needs a string");
  const Window part = window(runtime, self.view(), bound);
  if (!part.valid) return Value(std::int64_t{0});
  if (needle->empty()) return Value::count(count_chars(part.bytes) + 1);
  return Value::count(occurrences(runtime.meter, part.bytes, needle->view()).size());
}

Value replace_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const Text* from = bound.text(0);
  const Text* to = bound.text(1);
  if (from == nullptr || to == nullptr) fail("replace() needs two strings");
  return runtime.text(replace(runtime, self.text(), *from, *to, bound.integer(2, -1)));
}

Value join_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("join", args, {"iterable"}, 1);
  std::vector<Text> parts;
  for (const Value& part : iterate(runtime, *bound[0])) {
    if (!part.is_text()) fail("join() needs strings, found {}", type_name(part));
    parts.push_back(part.text());
  }
  return runtime.text(join(runtime, self.text(), parts));
}

Value splitlines_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("splitlines", args, {"keepends"});
  return texts(runtime, split_lines(runtime.meter, self.text(), bound.flag(0, false)));
}

template <bool at_end>
Value remove_affix_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound(at_end ? "removesuffix" : "removeprefix", args, {"affix"}, 1);
  const Text* affix = bound.text(0);
  if (affix == nullptr) fail("removeprefix and removesuffix need a string");
  const Text& text = self.text();
  if (affix->empty()) return self;
  if (at_end && text.view().ends_with(affix->view()))
    return runtime.text(text.substr(0, text.size() - affix->size()));
  if (!at_end && text.view().starts_with(affix->view()))
    return runtime.text(text.substr(affix->size()));
  return self;
}

template <bool left, bool right>
Value justify_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("justify", args, {"width", "fillchar"}, 1);
  const Text space(" ", true);
  const Text* fill = bound.text(1) != nullptr ? bound.text(1) : &space;
  if (count_chars(fill->view()) != 1) fail("the fill character must be exactly one character long");
  const std::int64_t width = bound.integer(0, 0);
  if (left && right) return runtime.text(centered(runtime, self.text(), width, *fill));
  const auto size = static_cast<std::int64_t>(count_chars(self.view()));
  const auto missing = static_cast<std::size_t>(std::max<std::int64_t>(width - size, 0));
  return runtime.text(padded(runtime, self.text(), left ? missing : 0, right ? missing : 0, *fill));
}

Value zfill_method(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("zfill", args, {"width"}, 1);
  const Text& text = self.text();
  const auto size = static_cast<std::int64_t>(count_chars(text.view()));
  const auto missing =
      static_cast<std::size_t>(std::max<std::int64_t>(bound.integer(0, 0) - size, 0));
  const bool has_sign = text.view().starts_with('-') || text.view().starts_with('+');
  Text out = text.substr(0, has_sign ? 1 : 0);
  out.append(padded(runtime, text.substr(has_sign ? 1 : 0), missing, 0, Text("0", true)));
  return runtime.text(std::move(out));
}

using CharTest = bool (*)(char32_t);

template <CharTest test>
Value all_chars(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("str method", args, {});
  runtime.meter.scan(self.text().size());
  bool all = !self.text().empty();
  for (std::size_t at = 0; at < self.text().size() && all;) {
    const Char c = char_at(self.view(), at);
    all = test(c.code);
    at += c.size;
  }
  return Value(all);
}

bool is_alnum(char32_t code) {
  return is_alpha(code) || is_digit(code) || is_numeric(code);
}

// isupper and islower: no letter of the other case, and at least one of this.
template <CharTest wanted, CharTest other>
Value one_case(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("str method", args, {});
  runtime.meter.scan(self.text().size());
  bool any = false;
  for (std::size_t at = 0; at < self.text().size();) {
    const Char c = char_at(self.view(), at);
    if (other(c.code) || is_title(c.code)) return Value(false);
    any = any || wanted(c.code);
    at += c.size;
  }
  return Value(any);
}

Value istitle_method(Runtime&, const Value& self, const Args& args) {
  const Bound none("istitle", args, {});
  const bool any = lower(self.view()) != upper(self.view());
  return Value(any && title(self.view()) == self.view());
}

Value isascii_method(Runtime&, const Value& self, const Args& args) {
  const Bound none("isascii", args, {});
  const std::string_view bytes = self.view();
  return Value(std::all_of(bytes.begin(), bytes.end(),
                           [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", rewritten<capitalize>},
    {"casefold", rewritten<case_fold>},
    {"center", justify_method<true, true>},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method_of_text<false, false>},
    {"format", format_method},
    {"index", find_method_of_text<false, true>},
    {"isalnum", all_chars<is_alnum>},
    {"isalpha", all_chars<is_alpha>},
    {"isascii", isascii_method},
    {"isdecimal", all_chars<is_decimal>},
    {"isdigit", all_chars<is_digit>},
    {"islower", one_case<is_lower, is_upper>},
    {"isnumeric", all_chars<is_numeric>},
    {"isspace", all_chars<is_space>},
    {"istitle", istitle_method},
    {"isupper", one_case<is_upper, is_lower>},
    {"join", join_method},
    {"ljust", justify_method<false, true>},
    {"lower", rewritten<lower>},
    {"lstrip", strip_method<true, false>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method},
    {"rfind", find_method_of_text<true, false>},
    {"rindex", find_method_of_text<true, true>},
    {"rjust", justify_method<true, false>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"strip", strip_method<true, true>},
    {"swapcase", rewritten<swap_case>},
    {"title", rewritten<title>},
    {"upper", rewritten<upper>},
    {"zfill", zfill_method},
};

}  // namespace

Method find_text_method(std::string_view name) {
  for (const auto& [known, method] : kMethods)
    if (known == name) return method;
  return nullptr;
}

}  // namespace tessera::jinja
