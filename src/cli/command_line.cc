#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/nearest.h"

namespace tessera::cli {
namespace {

std::vector<std::string> flag_names(const Option& option) {
  return CLI::detail::split(std::string(option.flags), ',');
}

// The flag as it was given, as far as that can be told: the one that stands among the words.
std::string flag_in_words(const Option& option, const std::vector<std::string>& words) {
  const std::vector<std::string> names = flag_names(option);
  for (const std::string& word : words)
    for (const std::string& name : names)
      if (word == name || word.starts_with(name + "=")) return name;
  return names.back();
}

// "run, bench": the commands that take the flag.
std::string takers(const std::string& flag) {
  std::uint32_t commands = 0;
  for (const Option& option : option_table()) {
    const std::vector<std::string> names = flag_names(option);
    if (std::find(names.begin(), names.end(), flag) != names.end()) commands |= option.commands;
  }
  std::vector<std::string_view> names;
  for (const CommandInfo& command : command_table())
    if ((commands & command.command) != 0) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Error unknown_word(const CommandInfo& command, const std::string& word) {
  std::vector<std::string> known = {"--config", "--print-config", "--help"};
  for (const Option& option : option_table())
    if ((option.commands & command.command) != 0 && !option.flags.empty())
      for (std::string& name : flag_names(option)) known.push_back(std::move(name));
  const std::string flag = word.substr(0, word.find('='));
  if (const std::string others = takers(flag); !others.empty())
    return Error::make(ErrorCode::invalid, "{} is no option of 'tessera {}', but of {}", flag,
                       command.name, others);
  return Error::make(ErrorCode::invalid, "{} is no option of 'tessera {}'{}", flag, command.name,
                     did_you_mean(flag, known));
}

}  // namespace

Result<CommandLine> parse_command_line(const CommandInfo& command,
                                       const std::vector<std::string>& words) {
  CommandLine line;
  std::vector<std::pair<const Option*, CLI::Option*>> bound;
  std::vector<std::string> extras;
  try {
    CLI::App app;
    app.allow_extras();
    app.set_help_flag("");
    app.add_flag("-h,--help", line.help);
    app.add_flag("--print-config", line.print_config);
    app.add_option("--config", line.config_path)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("arguments", line.arguments);
    for (const Option& option : option_table()) {
      if ((option.commands & command.command) == 0 || option.flags.empty()) continue;
      CLI::Option* added = nullptr;
      if (option.type == OptionType::boolean) {
        added = app.add_flag(std::string(option.flags));
      } else {
        added = app.add_option(std::string(option.flags));
        added->expected(1)->allow_extra_args(false);
        if (option.type == OptionType::list) added->take_all();
      }
      if (option.type != OptionType::list)
        added->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      bound.emplace_back(&option, added);
    }
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    app.parse(std::move(reversed));
    extras = app.remaining();
    for (const auto& [option, added] : bound) {
      if (added->count() == 0) continue;
      GivenOption given{option, flag_in_words(*option, words), added->results()};
      if (option->type != OptionType::list)
        given.values.erase(given.values.begin(), given.values.end() - 1);
      line.options.push_back(std::move(given));
    }
  } catch (const CLI::ArgumentMismatch&) {
    // Every option takes exactly one value, so the last word is the one that lacks it.
    return Error::make(ErrorCode::invalid, "{} needs a value; see 'tessera {} --help'",
                       words.back(), command.name);
  } catch (const CLI::Error& error) {
    return Error::make(ErrorCode::invalid, "{}; see 'tessera {} --help'", error.what(),
                       command.name);
  }
  if (!extras.empty()) return unknown_word(command, extras.front());
  return line;
}

}  // namespace tessera::cli
