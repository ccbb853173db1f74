#include "gguf/split_name.h"

#include <fmt/core.h>

#include <charconv>

namespace tessera::gguf {
namespace {

constexpr std::size_t kDigits = 5;

std::optional<std::int64_t> parse_digits(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

}  // namespace

std::optional<SplitName> SplitName::of(std::string_view path) {
  constexpr std::string_view kMiddle = "-of-", kEnd = ".gguf";
  constexpr std::size_t kTail = 1 + kDigits + kMiddle.size() + kDigits + kEnd.size();
  if (path.size() < kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kMiddle.size()) != kMiddle ||
      tail.substr(kTail - kEnd.size()) != kEnd) {
    return std::nullopt;
  }
  const auto number = parse_digits(tail.substr(1, kDigits));
  const auto count = parse_digits(tail.substr(1 + kDigits + kMiddle.size(), kDigits));
  if (!number || !count || *number > *count) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - kTail)), *number - 1, *count};
}

std::string SplitName::path(std::int64_t shard) const {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, shard + 1, count);
}

}  // namespace tessera::gguf
