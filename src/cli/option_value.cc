#include "cli/option_value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace tessera::cli {
namespace {

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"K", 1024.0},
                               {"KiB", 1024.0},
                               {"KB", 1e3},
                               {"MB", 1e6},
                               {"M", 1048576.0},
                               {"MiB", 1048576.0},
                               {"G", 1073741824.0},
                               {"GiB", 1073741824.0},
                               {"GB", 1e9},
                               {"T", 1099511627776.0},
                               {"TiB", 1099511627776.0},
                               {"TB", 1e12}};
constexpr Unit kTimeUnits[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"min", 60}, {"h", 3600}};

// "1.5GiB" as a number of the base unit.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : units)
    if (known.name == unit) return number * known.factor;
  return std::nullopt;
}

bool in_range(const Option& option, double value) {
  if (!std::isfinite(value)) return false;
  return (option.min == 0.0 && option.max == 0.0) || (value >= option.min && value <= option.max);
}

std::string bound_text(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 1e15 ? fmt::format("{:.0f}", bound)
                                                              : fmt::format("{:g}", bound);
}

Error wrong(const Option& option, std::string_view kind) {
  if (option.min == 0.0 && option.max == 0.0)
    return Error::make(ErrorCode::invalid, "give {}", kind);
  if (option.max >= 1e18)
    return Error::make(ErrorCode::invalid, "give {} of at least {}", kind, bound_text(option.min));
  return Error::make(ErrorCode::invalid, "give {} from {} to {}", kind, bound_text(option.min),
                     bound_text(option.max));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(separator));
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  return parts;
}

// Words that stand for a choice elsewhere, of options that have the choice and not the word.
constexpr std::pair<std::string_view, std::string_view> kSpellings[] = {
    {"warning", "warn"}, {"err", "error"}, {"none", "off"}};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

Result<OptionValue> parse_choice(const Option& option, std::string_view text) {
  if (option.choices.empty()) return OptionValue(std::string(text));
  const std::vector<std::string> choices = split(option.choices, '|');
  const auto known = [&](std::string_view word) {
    return std::find(choices.begin(), choices.end(), word) != choices.end();
  };
  std::string word = lower(text);
  if (!known(word))
    for (const auto& [spelling, choice] : kSpellings)
      if (word == spelling) word = choice;
  if (known(word)) return OptionValue(word);
  const auto last = choices.end() - 1;
  return Error::make(ErrorCode::invalid, "give {} or {}", fmt::join(choices.begin(), last, ", "),
                     *last);
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  constexpr double kMost = 9e18;
  const auto value = parse_quantity(text, kByteUnits);
  if (!value || !(*value >= 0.0 && *value <= kMost)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

Result<OptionValue> parse_value(const Option& option, std::string_view text) {
  switch (option.type) {
    case OptionType::text:
      return parse_choice(option, text);
    case OptionType::integer: {
      const auto value = parse_whole<std::int64_t>(text);
      if (!value || !in_range(option, static_cast<double>(*value)))
        return wrong(option, "a whole number");
      return OptionValue(*value);
    }
    case OptionType::number: {
      const auto value = parse_whole<double>(text);
      if (!value || !in_range(option, *value)) return wrong(option, "a number");
      return OptionValue(*value);
    }
    case OptionType::boolean:
      if (text == "true" || text == "1") return OptionValue(true);
      if (text == "false" || text == "0") return OptionValue(false);
      return Error::make(ErrorCode::invalid, "give true or false");
    case OptionType::bytes: {
      const auto value = parse_quantity(text, kByteUnits);
      if (!value || !in_range(option, *value)) return wrong(option, "bytes, as in 512MiB or 2GB,");
      return OptionValue(static_cast<std::int64_t>(*value));
    }
    case OptionType::seconds: {
      const auto value = parse_quantity(text, kTimeUnits);
      if (!value || !in_range(option, *value))
        return wrong(option, "a time, as in 250ms, 10s or 5min,");
      return OptionValue(*value);
    }
    case OptionType::list:
      return OptionValue(split(text, ','));
  }
  return Error::make(ErrorCode::internal, "option of an unknown type");
}

std::string value_text(const Option& option, const OptionValue& value) {
  switch (option.type) {
    case OptionType::text:
      return in_quotes(std::get<std::string>(value));
    case OptionType::integer:
    case OptionType::bytes:
      return fmt::format("{}", std::get<std::int64_t>(value));
    case OptionType::number:
      return fmt::format("{}", std::get<double>(value));
    case OptionType::seconds:
      return fmt::format("\"{}s\"", std::get<double>(value));
    case OptionType::boolean:
      return std::get<bool>(value) ? "true" : "false";
    case OptionType::list:
      break;
  }
  std::string out = "[";
  for (const std::string& part : std::get<std::vector<std::string>>(value))
    out += (out.size() > 1 ? ", " : "") + in_quotes(part);
  return out + "]";
}

Result<std::vector<int>> parse_int_list(std::string_view text, int min, int max) {
  std::vector<int> numbers;
  std::string flat(text);
  for (char& c : flat)
    if (c == '\n' || c == '\r' || c == '\t' || c == ' ') c = ',';
  for (const std::string& part : split(flat, ',')) {
    const auto value = parse_whole<int>(part);
    if (!value || *value < min || *value > max)
      return Error::make(ErrorCode::invalid, "'{}': give whole numbers from {} to {}, as in 1,2,3",
                         part.substr(0, 32), min, max);
    numbers.push_back(*value);
  }
  if (numbers.empty())
    return Error::make(ErrorCode::invalid, "no numbers: give a list, as in 1,2,3");
  return numbers;
}

}  // namespace tessera::cli
