// tessera run: one answer, or a conversation on the terminal.
#include <limits>
#include <optional>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "server/expert_use_json.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// Ctrl-C stops the answer; without one, or a second time, the program.
class Interrupts {
 public:
  Interrupts() : watch_([this](int signal) { handle(signal); }) {}

  void attach(CancellableEngine& engine) {
    std::lock_guard lock(mutex_);
    engine_ = &engine;
  }
  void detach() {
    std::lock_guard lock(mutex_);
    engine_ = nullptr;
  }

 private:
  void handle(int signal) {
    std::lock_guard lock(mutex_);
    if (engine_ == nullptr || !engine_->cancel_current()) end_at_once(signal);
  }

  std::mutex mutex_;
  CancellableEngine* engine_ = nullptr;
  SignalWatch watch_;
};

Result<std::vector<TokenId>> prompt_ids(const Config& config, const TextModel& text,
                                        const std::vector<TokenId>& ids) {
  if (!ids.empty()) return ids;
  const std::string& prompt = config.text("run.prompt");
  if (config.flag("run.raw"))
    return text.tokenizer.encode(prompt, {.parse_special = true, .add_bos = true});
  ChatInput input;
  input.messages = Json::array();
  if (config.given("run.system"))
    input.messages.push_back({{"role", "system"}, {"content", config.text("run.system")}});
  input.messages.push_back({{"role", "user"}, {"content", prompt}});
  input.kwargs = Json::object();
  input.now = clock_now();
  return text.encode_chat(input);
}

Json answer_json(const Generated& generated, const Plan& plan) {
  const Usage& usage = generated.finish.usage;
  Json tokens = Json::array();
  for (const EmittedToken& token : generated.tokens) tokens.push_back(token.id);
  Json timings = {{"prompt_tokens", usage.prompt_tokens},
                  {"prompt_s", usage.prompt_s},
                  {"generated", usage.generated_tokens},
                  {"generate_s", usage.generate_s}};
  if (usage.experts) timings["experts"] = server::expert_use_json(*usage.experts);
  return {{"tokens", std::move(tokens)},
          {"text", generated.text},
          {"stop", finish_name(generated.finish.reason)},
          {"seed", usage.seed},
          {"timings", std::move(timings)},
          {"plan", plan_json(plan)}};
}

Result<int> answer_once(const Config& config, const TextModel& text, CancellableEngine& engine,
                        const Plan& plan, const std::vector<TokenId>& ids) {
  const bool json = config.flag("output.json");
  TESSERA_ASSIGN(std::vector<TokenId> prompt, prompt_ids(config, text, ids));
  TESSERA_ASSIGN(const Generated generated,
                 answer(engine, request_for(config, std::move(prompt)), !json));
  if (json)
    print_out(json_text(answer_json(generated, plan), -1) + "\n");
  else
    log_speed(generated.finish);
  return generated.finish.reason == FinishReason::cancelled ? kExitInterrupted : kExitOk;
}

Result<int> run(const Config& config, const std::vector<TokenId>& ids) {
  Interrupts interrupts;
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(const Model model, Model::open(path.path));
  TESSERA_ASSIGN(const TextModel text, read_text_model(model.file(), config));
  MetricsRegistry metrics;
  TESSERA_ASSIGN(LoadedModel loaded,
                 load_model(config, model, {.measure = MeasureLayers::missing}, metrics));
  TESSERA_ASSIGN(const auto engine, start_engine(config, loaded, text.tokenizer, metrics));
  CancellableEngine cancellable(*engine);
  interrupts.attach(cancellable);
  Result<int> code = kExitOk;
  if (ids.empty() && !config.given("run.prompt"))
    code = chat(config, text, cancellable);
  else
    code = answer_once(config, text, cancellable, loaded.plan, ids);
  interrupts.detach();
  return code;
}

Status check_usage(const Config& config) {
  const bool prompt = config.given("run.prompt"), ids = config.given("run.ids");
  if (prompt && ids) return Error::make(ErrorCode::invalid, "give either -p or --ids, not both");
  if (config.flag("run.raw") && !prompt)
    return Error::make(ErrorCode::invalid, "--raw needs a prompt: give -p TEXT");
  if (config.given("run.system") && (ids || config.flag("run.raw")))
    return Error::make(ErrorCode::invalid,
                       "--system is put in place by the chat template, which {} does without; drop "
                       "one of them",
                       ids ? "--ids" : "--raw");
  if (config.flag("output.json") && !prompt && !ids)
    return Error::make(ErrorCode::invalid, "--json needs a prompt: give -p TEXT or --ids LIST");
  return {};
}

}  // namespace

int run_command(const Config& config) {
  if (const Status status = check_usage(config); !status) return misuse(status.error());
  std::vector<TokenId> ids;
  if (config.given("run.ids")) {
    Result<std::vector<int>> parsed =
        parse_int_list(config.text("run.ids"), 0, std::numeric_limits<int>::max());
    if (!parsed) return misuse(std::move(parsed).error().in("--ids"));
    ids = *std::move(parsed);
  }
  const Result<int> code = run(config, ids);
  return code ? *code : fail(code.error());
}

}  // namespace tessera::cli
