// tessera COMMAND ...: finds the command, resolves its options, runs it.
#include <fmt/core.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/help.h"
#include "cli/nearest.h"
#include "cli/output.h"
#include "cli/placement_options.h"

namespace tessera::cli {
namespace {

const CommandInfo* find_command(const std::string& name) {
  for (const CommandInfo& info : command_table())
    if (info.name == name) return &info;
  return nullptr;
}

int unknown_command(const std::string& word) {
  std::vector<std::string> names;
  for (const CommandInfo& info : command_table()) names.emplace_back(info.name);
  if (word.starts_with("-"))
    return misuse(Error::make(ErrorCode::invalid,
                              "{}: give a command first, as in 'tessera serve model.gguf'; see "
                              "'tessera --help'",
                              word));
  const std::string nearest = did_you_mean(word, names);
  return misuse(Error::make(ErrorCode::invalid, "'{}' is no command{} 'tessera --help'", word,
                            nearest.empty() ? "; see" : nearest + " See"));
}

// How many positional arguments a command takes.
Status check_arguments(const Config& config) {
  const CommandInfo& info = config.command();
  const std::size_t given = config.arguments().size();
  const std::size_t most = info.command == kSynth ? 2 : info.command == kDevices ? 0 : 1;
  const std::size_t least = info.usage.starts_with('[') ? 0 : most;
  if (given > most)
    return Error::make(ErrorCode::invalid, "'{}' is one argument too many; usage: tessera {} {}",
                       config.arguments()[most], info.name, info.usage);
  if (given < least)
    return Error::make(ErrorCode::invalid, "an argument is missing; usage: tessera {} {}",
                       info.name, info.usage);
  if (info.command == kCalibrate && config.text("calibrate.text").empty())
    return Error::make(ErrorCode::invalid, "--text: name a file to count with");
  return {};
}

void apply_log_level(const std::string& name) {
  set_log_level(name == "debug"   ? LogLevel::debug
                : name == "info"  ? LogLevel::info
                : name == "warn"  ? LogLevel::warn
                : name == "error" ? LogLevel::error
                                  : LogLevel::off);
}

int run(const Config& config) {
  switch (config.command().command) {
    case kServe:
      return serve_command(config);
    case kRun:
      return run_command(config);
    case kLogits:
      return logits_command(config);
    case kTokenize:
      return tokenize_command(config);
    case kDetokenize:
      return detokenize_command(config);
    case kTemplate:
      return template_command(config);
    case kInspect:
      return inspect_command(config);
    case kPlan:
      return plan_command(config);
    case kDevices:
      return devices_command(config);
    case kBench:
      return bench_command(config);
    case kSynth:
      return synth_command(config);
    case kWorker:
      return worker_command(config);
    case kCalibrate:
      return calibrate_command(config);
  }
  return kExitUsage;
}

int command_main(const CommandInfo& info, const std::vector<std::string>& words) {
  const Result<Config> config = Config::resolve(info, words);
  if (!config) return misuse(config.error());
  if (config->wants_help()) {
    print_out(command_help(info));
    return kExitOk;
  }
  if (config->wants_print()) {
    print_out(config->print());
    return kExitOk;
  }
  if (const Status status = check_arguments(*config); !status) return misuse(status.error());
  if ((info.command & kModelCommands) != 0)
    if (const Status status = check_placement(*config); !status) return misuse(status.error());
  if (info.command == kWorker)
    if (const Status status = check_worker(*config); !status) return misuse(status.error());
  apply_log_level(config->text("log.level"));
  return run(*config);
}

int program_main(const std::vector<std::string>& words) {
  if (words.empty())
    return misuse(
        Error::make(ErrorCode::invalid,
                    "give a command, as in 'tessera serve model.gguf'; see 'tessera --help'"));
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    const CommandInfo* info = words.size() > 1 ? find_command(words[1]) : nullptr;
    if (words.size() > 1 && info == nullptr) return unknown_command(words[1]);
    print_out(info != nullptr ? command_help(*info) : program_help());
    return kExitOk;
  }
  if (words[0] == "--version") {
    print_out("tessera {}\n", TESSERA_VERSION);
    return kExitOk;
  }
  const CommandInfo* info = find_command(words[0]);
  if (info == nullptr) return unknown_command(words[0]);
  return command_main(*info, {words.begin() + 1, words.end()});
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  // A reader that goes away ends the program without a word, also where the parent ignores this.
  std::signal(SIGPIPE, SIG_DFL);
  const int code = tessera::cli::program_main({argv + 1, argv + argc});
  const tessera::Status written = tessera::cli::finish_output();
  if (!written && code == tessera::cli::kExitOk) return tessera::cli::fail(written.error());
  return code;
}
