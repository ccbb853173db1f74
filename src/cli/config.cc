#include "cli/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/environment.h"
#include "cli/nearest.h"
#include "cli/toml_file.h"

namespace tessera::cli {
namespace {

constexpr const char* kConfigVariable = "TESSERA_CONFIG";
constexpr const char* kAliasPrefix = "DFLASH_MOE_EXPERT_COMPUTE_IPC_";  // of Option::alias

// The file that is read when none is named; empty when there is none.
std::string usual_config_path() {
  std::string folder;
  if (const auto xdg = environment_variable("XDG_CONFIG_HOME"))
    folder = *xdg;
  else if (const auto home = environment_variable("HOME"))
    folder = *home + "/.config";
  else
    return {};
  const std::string path = folder + "/tessera/config.toml";
  std::error_code error;
  return std::filesystem::exists(path, error) ? path : std::string();
}

std::vector<std::string> file_keys() {
  std::vector<std::string> keys;
  for (const Option& option : option_table())
    if (option.file) keys.emplace_back(option.key);
  return keys;
}

Result<OptionValue> parse_all(const Option& option, const std::vector<std::string>& values) {
  if (option.type == OptionType::list) return OptionValue(values);
  if (values.size() != 1) return Error::make(ErrorCode::invalid, "give one value, not a list");
  return parse_value(option, values.front());
}

bool is_secret(const Option& option) {
  return option.key == "server.api_key" || option.key == "worker.token";
}

}  // namespace

Result<Config> Config::resolve(const CommandInfo& command, const std::vector<std::string>& words) {
  Config config(command);
  TESSERA_ASSIGN(const CommandLine line, parse_command_line(command, words));
  config.help_ = line.help;
  config.print_ = line.print_config;
  config.arguments_ = line.arguments;
  TESSERA_TRY(config.set_defaults());
  if (line.help) return config;
  const std::string path =
      !line.config_path.empty()
          ? line.config_path
          : environment_variable(kConfigVariable).value_or(usual_config_path());
  if (!path.empty()) TESSERA_TRY(config.read_file(path));
  TESSERA_TRY(config.read_environment());
  TESSERA_TRY(config.apply(line));
  return config;
}

Status Config::set_defaults() {
  for (const Option& option : option_table()) {
    Result<OptionValue> value = parse_value(option, option.fallback);
    CHECK(value.ok(), "default of {}", option.key);
    const std::string_view flags = option.flags;
    entries_[std::string(option.key)] = {.value = *std::move(value),
                                         .origin = "default",
                                         .name = std::string(flags.substr(flags.rfind(',') + 1))};
  }
  return {};
}

Status Config::read_file(const std::string& path) {
  TESSERA_ASSIGN(const std::vector<TomlEntry> lines, read_toml_file(path));
  for (const TomlEntry& line : lines) {
    const Option* option = find_option(line.key);
    const std::string where = fmt::format("{}:{}", path, line.line);
    if (option == nullptr)
      return Error::make(ErrorCode::invalid, "{}: {} is no key{}", where, line.key,
                         did_you_mean(line.key, file_keys()));
    if (!option->file)
      return Error::make(ErrorCode::invalid, "{}: {} belongs on the command line, not in a file",
                         where, line.key);
    Result<OptionValue> value = parse_all(*option, line.values);
    if (!value)
      return Error::make(ErrorCode::invalid, "{}: {} = {}: {}", where, line.key,
                         fmt::join(line.values, ", "), value.error().message);
    entries_[line.key] = {.value = *std::move(value),
                          .given = true,
                          .by_file = true,
                          .origin = "file " + where,
                          .name = fmt::format("{}: {}", where, line.key)};
  }
  return {};
}

// A variable of that name for that option.
Status Config::take_variable(const Option& option, const std::string& name,
                             const std::string& text) {
  Result<OptionValue> value = parse_value(option, text);
  if (!value)
    return Error::make(ErrorCode::invalid, "{}={}: {}", name, text, value.error().message);
  entries_[std::string(option.key)] = {
      .value = *std::move(value), .given = true, .origin = "environment " + name, .name = name};
  return {};
}

// Variables with a prefix are all names of options.
Status Config::read_variables(std::string_view prefix, std::string (*name_of)(const Option&)) {
  std::vector<std::string> known = {kConfigVariable};
  for (const Option& option : option_table())
    if (const std::string name = name_of(option); !name.empty()) known.push_back(name);
  for (const auto& [name, text] : environment_with_prefix(prefix)) {
    if (name == kConfigVariable) continue;
    const auto found = std::find_if(option_table().begin(), option_table().end(),
                                    [&](const Option& option) { return name_of(option) == name; });
    if (found == option_table().end())
      return Error::make(ErrorCode::invalid, "the environment variable {} is unknown{}", name,
                         did_you_mean(name, known));
    TESSERA_TRY(take_variable(*found, name, text));
  }
  return {};
}

Status Config::read_environment() {
  TESSERA_TRY(
      read_variables(kAliasPrefix, [](const Option& option) { return std::string(option.alias); }));
  return read_variables("TESSERA_", [](const Option& option) {
    return option.file ? variable_name(option) : std::string();
  });
}

Status Config::apply(const CommandLine& line) {
  for (const GivenOption& given : line.options) {
    Result<OptionValue> value = parse_all(*given.option, given.values);
    if (!value)
      return Error::make(ErrorCode::invalid, "{} {}: {}", given.flag, given.values.back(),
                         value.error().message);
    entries_[std::string(given.option->key)] = {.value = *std::move(value),
                                                .given = true,
                                                .origin = "flag " + given.flag,
                                                .name = given.flag};
  }
  return {};
}

const Config::Entry& Config::entry(std::string_view key) const {
  const auto found = entries_.find(key);
  CHECK(found != entries_.end(), "no option {}", key);
  return found->second;
}

const std::string& Config::text(std::string_view key) const {
  return std::get<std::string>(entry(key).value);
}
std::int64_t Config::integer(std::string_view key) const {
  return std::get<std::int64_t>(entry(key).value);
}
int Config::small(std::string_view key) const {
  const std::int64_t value = integer(key);
  CHECK(std::in_range<int>(value), "{} is {}", key, value);
  return static_cast<int>(value);
}
double Config::number(std::string_view key) const {
  return std::get<double>(entry(key).value);
}
bool Config::flag(std::string_view key) const {
  return std::get<bool>(entry(key).value);
}
const std::vector<std::string>& Config::list(std::string_view key) const {
  return std::get<std::vector<std::string>>(entry(key).value);
}
bool Config::given(std::string_view key) const {
  return entry(key).given;
}
bool Config::given_by_file(std::string_view key) const {
  return entry(key).by_file;
}
std::string Config::name_as_given(std::string_view key) const {
  return entry(key).name;
}

std::string Config::print() const {
  std::string out;
  for (const Option& option : option_table()) {
    if ((option.commands & command_->command) == 0) continue;
    const Entry& value = entry(option.key);
    const bool hidden = is_secret(option) && value.given;
    const std::string shown = hidden ? "(hidden)" : value_text(option, value.value);
    // What a file may not hold is a comment, and so is what nobody gave and stands for a choice of
    // the program, so that the output is itself a configuration file.
    const bool unset = !value.given && (shown == "\"\"" || shown == "[]");
    const char* comment = option.file && !hidden && !unset ? "" : "# ";
    out += fmt::format("{:<44} # {}\n", fmt::format("{}{} = {}", comment, option.key, shown),
                       value.origin);
  }
  return out;
}

}  // namespace tessera::cli
