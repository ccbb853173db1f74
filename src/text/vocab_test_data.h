// The published vocabularies of tests/data/vocab with their test strings and expected ids.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace tessera::text {

inline std::string read_test_file(const std::string& name) {
  const std::string path = fmt::format("{}/tests/data/vocab/{}", TESSERA_SOURCE_DIR, name);
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), "cannot open {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A .vocab file: see tests/data/vocab/README.md.
class TestVocabReader {
 public:
  explicit TestVocabReader(const std::string& name) : bytes_(read_test_file(name + ".vocab")) {}

  TokenizerSpec read() {
    TokenizerSpec spec;
    CHECK(take(8) == "TVOC0001");
    spec.model = text();
    spec.pre_tokenizer = text();
    for (auto* id : {&spec.bos_id, &spec.eos_id, &spec.unknown_id, &spec.padding_id}) {
      if (const std::uint64_t value = number(); value != 0)
        *id = static_cast<std::int64_t>(value) - 1;
    }
    spec.add_bos = number() != 0;
    const std::uint64_t n_token = number();
    for (std::uint64_t i = 0; i < n_token; ++i) spec.tokens.push_back(text());
    while (spec.token_types.size() < n_token) {
      const std::uint64_t run = number();
      spec.token_types.insert(spec.token_types.end(), run, static_cast<std::int32_t>(number()));
    }
    const std::uint64_t n_merge = number();
    for (std::uint64_t i = 0; i < n_merge; ++i) {
      const std::string& left = spec.tokens[token_index()];
      const std::string& right = spec.tokens[token_index()];
      spec.merges.push_back(left + " " + right);
    }
    CHECK(at_ == bytes_.size());
    return spec;
  }

 private:
  std::string_view take(std::size_t n) {
    CHECK(n <= bytes_.size() - at_);
    at_ += n;
    return std::string_view(bytes_).substr(at_ - n, n);
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string text() { return std::string(take(number())); }
  std::size_t token_index() {
    const std::string_view b = take(3);
    const auto byte = [&](std::size_t i) { return std::size_t{static_cast<std::uint8_t>(b[i])}; };
    return byte(0) | (byte(1) << 8) | (byte(2) << 16);
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

// "qwen35" or "gemma4"; each is made once.
inline const Tokenizer& test_tokenizer(std::string_view name) {
  const auto make = [](const std::string& file) {
    Result<Tokenizer> made = Tokenizer::create(TestVocabReader(file).read());
    CHECK(made.ok(), "{}", made.error().message);
    return std::move(*made);
  };
  if (name == "qwen35") {
    static const Tokenizer qwen = make("qwen35");
    return qwen;
  }
  CHECK(name == "gemma4");
  static const Tokenizer gemma = make("gemma4");
  return gemma;
}

struct TestString {
  std::string text;
  std::vector<TokenId> ids;
};

inline std::vector<TestString> test_strings(const std::string& name) {
  constexpr std::string_view kMarker = "\n__ggml_vocab_test__\n";
  const std::string inputs = read_test_file(name + ".inp");
  std::istringstream lines(read_test_file(name + ".out"));
  std::vector<TestString> strings;
  std::size_t at = 0;
  for (std::string line; std::getline(lines, line);) {
    CHECK(at <= inputs.size());
    const std::size_t end = std::min(inputs.find(kMarker, at), inputs.size());
    std::istringstream ids(line);
    strings.push_back({inputs.substr(at, end - at),
                       {std::istream_iterator<TokenId>(ids), std::istream_iterator<TokenId>()}});
    at = end + kMarker.size();
  }
  CHECK(at >= inputs.size(), "{}: more strings than lines of ids", name);
  return strings;
}

}  // namespace tessera::text
