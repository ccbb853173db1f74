// The texts of --help, made from the tables; no line is longer than 100 columns.
#pragma once

#include <string>

#include "cli/option_table.h"

namespace tessera::cli {

std::string program_help();
std::string command_help(const CommandInfo& command);

}  // namespace tessera::cli
