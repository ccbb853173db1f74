#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "cli/wrap.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kWidth = 98;
constexpr std::size_t kHelpColumn = 34;
constexpr auto kGroupOrder = std::to_array<std::string_view>(
    {"This call", "Sampling", "Server", "Model and memory", "Experts", "Workers", "General"});

// "-c, --ctx N"
std::string left_column(const Option& option) {
  std::string names(option.flags);
  for (std::size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 2))
    names.insert(at + 1, " ");
  if (names.starts_with("--")) names.insert(0, "    ");
  return fmt::format("  {}{}{}", names, option.value.empty() ? "" : " ", option.value);
}

std::string right_column(const Option& option) {
  std::string text(option.help);
  if (!option.choices.empty()) {
    std::string choices(option.choices);
    std::replace(choices.begin(), choices.end(), '|', ' ');
    text += fmt::format(" ({})", choices);
  }
  if (option.type != OptionType::boolean && !option.fallback.empty())
    text += fmt::format(" [{}]", option.fallback);
  return text;
}

void append_row(std::string& out, std::string left, std::string_view right) {
  if (left.size() + 2 > kHelpColumn)
    left += "\n" + std::string(kHelpColumn, ' ');
  else
    left.resize(kHelpColumn, ' ');
  out += left;
  append_wrapped(out, right, {.indent = kHelpColumn, .start = kHelpColumn, .width = kWidth});
  out += '\n';
}

}  // namespace

std::string program_help() {
  std::string out =
      "tessera serves language models from GGUF files on processors and GPUs.\n\n"
      "Usage: tessera COMMAND [arguments] [options]\n\nCommands:\n";
  for (const CommandInfo& info : command_table())
    out += fmt::format("  {:<11}{}\n", info.name, info.summary);
  out +=
      "\nTry:\n  tessera run                    chat with the small model that comes with Tessera\n"
      "  tessera serve model.gguf       answer an OpenAI-style HTTP API on port 8080\n"
      "  tessera COMMAND --help         the options of one command\n"
      "  tessera --version              which version this is\n\n";
  append_wrapped(
      out,
      "Every option can also stand in a TOML file (--config PATH, or "
      "~/.config/tessera/config.toml) or in the environment: --port 9000, 'port = 9000' "
      "under [server] and TESSERA_SERVER_PORT=9000 say the same. A flag wins over the "
      "environment, the environment over the file. Of an option that is given twice the last "
      "value counts, unless it is repeatable. --print-config shows each value and where "
      "it came from.",
      {.width = kWidth});
  return out + "\n";
}

std::string command_help(const CommandInfo& command) {
  std::string out = fmt::format("tessera {}: {}\n\nUsage: tessera {}{}{} [options]\nExample: {}\n",
                                command.name, command.summary, command.name,
                                command.usage.empty() ? "" : " ", command.usage, command.example);
  for (const std::string_view group : kGroupOrder) {
    std::string rows;
    for (const Option& option : option_table())
      if ((option.commands & command.command) != 0 && option_group(option) == group &&
          !option.flags.empty())
        append_row(rows, left_column(option), right_column(option));
    if (group == "General") {
      append_row(rows, "      --config PATH", "read this TOML file instead of the user's");
      append_row(rows, "      --print-config", "show every value with its origin, and end");
      append_row(rows, "  -h, --help", "this text");
    }
    if (!rows.empty()) out += fmt::format("\n{}:\n{}", group, rows);
  }
  return out;
}

}  // namespace tessera::cli
