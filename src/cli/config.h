// Config: the value of every option for this call, and where it came from.
//
//   TESSERA_ASSIGN(Config config, Config::resolve(command_info(kServe), words));
//   const std::int64_t port = config.integer("server.port");
//
// A flag wins over a TESSERA_<SECTION>_<KEY> variable, that over the variable of another name that
// some options also have (Option::alias), that over the TOML file (--config,
// TESSERA_CONFIG, else $XDG_CONFIG_HOME/tessera/config.toml or ~/.config/tessera/config.toml where
// there is one), and that over the table's default. Every value is checked wherever it stands, also
// one that this command does not use. Unknown flags, keys and variables are errors. Asking for a
// key that the table does not have, or as another type, is a bug.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/command_line.h"
#include "cli/option_value.h"

namespace tessera::cli {

class Config {
 public:
  static Result<Config> resolve(const CommandInfo& command, const std::vector<std::string>& words);

  const std::string& text(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;  // also bytes
  int small(std::string_view key) const;             // an integer whose range is within int
  double number(std::string_view key) const;         // also seconds
  bool flag(std::string_view key) const;
  const std::vector<std::string>& list(std::string_view key) const;

  // Not the default.
  bool given(std::string_view key) const;
  // By the TOML file, which may be meant for several models, and by nothing that wins over it.
  bool given_by_file(std::string_view key) const;
  // The option as the person wrote it ("--ctx", "TESSERA_KV_CTX"), or its flag if it was not given.
  std::string name_as_given(std::string_view key) const;

  const CommandInfo& command() const { return *command_; }
  const std::vector<std::string>& arguments() const { return arguments_; }
  bool wants_help() const { return help_; }
  bool wants_print() const { return print_; }

  // All values with their origin; lines of TOML. Keys are not shown.
  std::string print() const;

 private:
  struct Entry {
    OptionValue value;
    bool given = false;
    bool by_file = false;
    std::string origin;  // for --print-config
    std::string name;    // for messages
  };

  explicit Config(const CommandInfo& command) : command_(&command) {}
  Status set_defaults();
  Status read_file(const std::string& path);
  Status read_environment();
  Status read_variables(std::string_view prefix, std::string (*name_of)(const Option&));
  Status take_variable(const Option& option, const std::string& name, const std::string& text);
  Status apply(const CommandLine& line);
  const Entry& entry(std::string_view key) const;

  const CommandInfo* command_;
  std::vector<std::string> arguments_;
  bool help_ = false;
  bool print_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace tessera::cli
