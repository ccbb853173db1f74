// Options of the process and of one call mean what they say (capability_test.cc has those of
// models):
//
//   Effect::process  each shows in what it is about
//   Effect::call     is refused by serve and the configuration file, or by every command that loads
//                    a model
#include <cmath>

#include "cli/loading.h"
#include "cli/option_table.h"
#include "cli/server_options.h"
#include "cli/text_model.h"
#include "tests/cli/capability_entries.h"
#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

// A flag that a command does not have is refused by it, and the file has no place for what is of
// one call.
TEST(Capabilities, EveryCommandRefusesTheOptionsOfOthers) {
  const auto takes = [](const cli::CommandInfo& command, const std::string& flag) {
    for (const cli::Option& option : cli::option_table())
      if ((option.commands & command.command) != 0 && last_flag(option) == flag) return true;
    return false;
  };
  const auto expect_refused = [](const cli::CommandInfo& command,
                                 const std::vector<std::string>& words, const std::string& part) {
    const Result<cli::Config> config = cli::Config::resolve(command, words);
    ASSERT_FALSE(config) << command.name << ": " << words.front();
    EXPECT_EQ(config.error().code, ErrorCode::invalid);
    EXPECT_NE(config.error().message.find(part), std::string::npos) << config.error().message;
  };
  const std::string file = scratch_folder() + "/of_one_call.toml";
  for (const cli::Option& option : cli::option_table()) {
    const std::string flag = last_flag(option), key(option.key);
    for (const cli::CommandInfo& command : cli::command_table())
      if (!flag.empty() && !takes(command, flag))
        expect_refused(command, {flag, "1"},
                       fmt::format("{} is no option of 'tessera {}'", flag, command.name));
    if (option.file) continue;
    const std::size_t dot = key.find('.');
    write_file(file, fmt::format("[{}]\n{} = 1\n", key.substr(0, dot), key.substr(dot + 1)));
    expect_refused(cli::command_info(cli::kServe), {"--config", file},
                   "belongs on the command line");
  }
}

// A number of the options and what became of it.
bool shows(const Entry& entry, double got) {
  const double given = std::stod(std::string(entry.value));
  return std::abs(got - given) < 1e-6 * given;
}

void check_sampling(const Entry& entry, const SamplingParams& got) {
  const std::string_view name = entry.key.substr(std::string_view("sampling.").size());
  EXPECT_TRUE(shows(entry, name == "temperature"          ? got.temperature
                           : name == "top_k"              ? got.top_k
                           : name == "top_p"              ? got.top_p
                           : name == "min_p"              ? got.min_p
                           : name == "repetition_penalty" ? got.repetition_penalty
                           : name == "presence_penalty"   ? got.presence_penalty
                           : name == "frequency_penalty"  ? got.frequency_penalty
                           : name == "seed" ? static_cast<double>(got.seed.value_or(0))
                                            : NAN));
}

int queue_of(const cli::Config& config) {
  MetricsRegistry metrics;
  Result<cli::LoadedModel> loaded = cli::load_model(config, capability_model(), {}, metrics);
  const auto text = cli::read_text_model(capability_model().file(), config);
  if (!loaded || !text) return -1;
  const auto engine = cli::start_engine(config, *loaded, text->tokenizer, metrics);
  return engine ? (*engine)->status().max_queue : -1;
}

// `file`: what the file that the value stands for has, without its line's end.
void check_server(const Entry& entry, const cli::Config& config, const std::string& file) {
  const Result<server::ServerOptions> server = cli::server_options(config);
  ASSERT_TRUE(server) << server.error().message;
  const std::string_view name = entry.key.substr(std::string_view("server.").size());
  const std::string value(entry.value);
  const std::vector<std::string> alone = {value};
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  if (name == "host")
    EXPECT_EQ(server->host, value);
  else if (name == "port")
    EXPECT_TRUE(shows(entry, server->port));
  else if (name == "api_key")
    EXPECT_EQ(server->api_keys, alone);
  else if (name == "api_key_file")
    EXPECT_EQ(server->api_keys, std::vector<std::string>{file});
  else if (name == "cors_origin")
    EXPECT_EQ(server->cors_origins, alone);
  else if (name == "insecure")
    EXPECT_TRUE(server->insecure);
  else if (name == "alias")
    EXPECT_EQ(cli::served_id(config, {"a/model.gguf"}), value);
  else if (name == "max_queue")
    EXPECT_TRUE(shows(entry, queue_of(config)));
  else if (name == "max_body")
    EXPECT_TRUE(shows(entry, static_cast<double>(server->max_body)));
  else if (name == "max_header")
    EXPECT_TRUE(shows(entry, static_cast<double>(server->max_header)));
  else if (name == "max_connections")
    EXPECT_TRUE(shows(entry, static_cast<double>(server->max_connections)));
  else if (name == "header_timeout")
    EXPECT_TRUE(shows(entry, seconds(server->timeouts.header)));
  else if (name == "idle_timeout")
    EXPECT_TRUE(shows(entry, seconds(server->timeouts.keep_alive)));
  else if (name == "drain")
    EXPECT_TRUE(shows(entry, seconds(cli::drain_time(config))));
  else
    ADD_FAILURE() << entry.key << ": say here where it shows";
}

void check_template(const cli::Config& config) {
  const Result<cli::TextModel> text = cli::read_text_model(capability_model().file(), config);
  ASSERT_TRUE(text && text->chat) << (text ? text->no_chat : text.error().message);
  const auto messages = nlohmann::ordered_json::parse(R"([{"role":"user","content":"hello"}])");
  const auto segments = text->chat->render({.messages = messages});
  ASSERT_TRUE(segments) << segments.error().message;
  std::string said;
  for (const jinja::Segment& segment : *segments) said += segment.text;
  EXPECT_EQ(said, "<hello>");
}

// Without a model the program says which one it takes, as information.
void check_log_level(const Entry& entry) {
  const Outcome outcome =
      run_program({{"run", "-p", "a", "-n", "1", "--log-level", std::string(entry.value)}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("no model was named") != std::string::npos, entry.value == "debug")
      << outcome.err;
}

TEST(Capabilities, OptionsOfTheProcessAreHonoured) {
  for_each_entry([&](const Entry& entry) {
    if (entry.effect != Effect::process) return;
    SCOPED_TRACE(fmt::format("{} {}", entry.key, entry.value));
    const Settings setting = Rig::get().setting(entry.key, entry.value, Topology::one);
    const Result<cli::Config> config = resolve(setting);
    ASSERT_TRUE(config) << config.error().message;
    std::string file;
    if (entry.value.starts_with("{")) {
      file = read_file(setting.begin()->second.front());
      file.pop_back();
    }
    if (entry.key.starts_with("sampling."))
      check_sampling(entry, cli::sampling_params(*config));
    else if (entry.key.starts_with("server."))
      check_server(entry, *config, file);
    else if (entry.key == "text.chat_template_file")
      check_template(*config);
    else if (entry.key == "log.level")
      check_log_level(entry);
    else
      ADD_FAILURE() << entry.key << ": say here where it shows";
  });
}

}  // namespace
}  // namespace tessera::testing
