// The words of the command line, sorted into options and positional arguments; nothing is judged
// but their form.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/option_table.h"

namespace tessera::cli {

struct GivenOption {
  const Option* option = nullptr;
  std::string flag;                 // "--ctx", for messages
  std::vector<std::string> values;  // several for a list only
};

struct CommandLine {
  std::vector<GivenOption> options;
  std::vector<std::string> arguments;
  std::string config_path;  // --config
  bool help = false;
  bool print_config = false;
};

// `words` are those after the subcommand.
Result<CommandLine> parse_command_line(const CommandInfo& command,
                                       const std::vector<std::string>& words);

}  // namespace tessera::cli
