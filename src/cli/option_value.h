// The value of an option: read from text, checked against the table, printed again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "cli/option_table.h"

namespace tessera::cli {

// integer and bytes: int64; number and seconds: double; list: strings.
using OptionValue = std::variant<std::string, std::int64_t, double, bool, std::vector<std::string>>;

// The error says what would be right ("give 1 to 8192"); the caller puts before it what was given.
Result<OptionValue> parse_value(const Option& option, std::string_view text);

// "512MiB", "2GB", "1048576"; nothing if it is no such quantity.
std::optional<std::int64_t> parse_bytes(std::string_view text);

// As TOML.
std::string value_text(const Option& option, const OptionValue& value);

// "1", "1,2,3"; every number from `min` to `max`. The error names the bad part.
Result<std::vector<int>> parse_int_list(std::string_view text, int min, int max);

}  // namespace tessera::cli
