// The one table of options. Flags, TOML keys, environment variables, --help, --print-config and the
// docs are all made from it, so an option cannot exist in one of them and be missing in another.
//
//   server.port   is   --port 9000   or   port = 9000 under [server]   or TESSERA_SERVER_PORT=9000
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::cli {

enum class OptionType {
  text,
  integer,
  number,
  boolean,  // a flag without a value on the command line
  bytes,    // "512MiB", "2GB", "1048576"
  seconds,  // "30", "10s", "250ms", "5min"
  list,     // repeatable flag, TOML array, comma-separated in the environment
};

// Subcommands, as a set of bits.
enum Command : std::uint32_t {
  kServe = 1 << 0,
  kRun = 1 << 1,
  kLogits = 1 << 2,
  kTokenize = 1 << 3,
  kDetokenize = 1 << 4,
  kTemplate = 1 << 5,
  kInspect = 1 << 6,
  kPlan = 1 << 7,
  kBench = 1 << 8,
  kSynth = 1 << 9,
  kWorker = 1 << 10,
  kCalibrate = 1 << 11,
  kDevices = 1 << 12,
};
inline constexpr std::uint32_t kModelCommands =
    kServe | kRun | kLogits | kPlan | kBench | kCalibrate;
inline constexpr std::uint32_t kSamplingCommands = kServe | kRun;
inline constexpr std::uint32_t kAllCommands = ~std::uint32_t{0};

struct Option {
  std::string_view
      key;  // "server.port"; also the TOML path and, in capitals, the environment variable
  // "-c,--ctx"; empty: not on the command line, where others can read it
  std::string_view flags;
  OptionType type;
  std::string_view fallback;  // the default, as a person would write it
  std::uint32_t commands;     // that take it
  std::string_view value;     // what --help shows for the value: "N", "PATH"
  std::string_view help;
  double min = 0.0;  // integer, number, bytes, seconds: the range; both 0 for any
  double max = 0.0;
  std::string_view choices = {};  // text: "auto|f16|f32"
  bool file = true;  // may stand in the TOML file and the environment (false: of one call only)
  std::string_view alias = {};  // a further name in the environment
};

std::span<const Option> option_table();
const Option* find_option(std::string_view key);      // nullptr if there is none
std::string_view option_group(const Option& option);  // its heading in --help
std::string variable_name(const Option& option);      // "TESSERA_SERVER_PORT"

struct CommandInfo {
  Command command;
  std::string_view name;
  std::string_view usage;  // positional arguments
  std::string_view summary;
  std::string_view example;
};
std::span<const CommandInfo> command_table();
const CommandInfo& command_info(Command command);

}  // namespace tessera::cli
