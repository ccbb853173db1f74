// tessera serve: listens at once, loads, answers until a signal, drains.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <future>
#include <optional>
#include <semaphore>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/current_plan.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/server_options.h"
#include "cli/signals.h"
#include "cli/text_model.h"
#include "cli/wrap.h"
#include "server/server.h"

namespace tessera::cli {
namespace {

using server::ServedModel;
using server::Server;

constexpr int kDefaultParallel = 4;

// The first signal asks for a drain, or ends a program that still loads; the second ends it.
class StopRequest {
 public:
  StopRequest() : watch_([this](int signal) { handle(signal); }) {}

  void set_ready() { ready_ = true; }
  // Whether it came within the time.
  bool wait_for(std::chrono::milliseconds time) { return asked_.try_acquire_for(time); }

 private:
  void handle(int signal) {
    if (!ready_) {
      log_info("stopped while loading");
      std::_Exit(kExitOk);
    }
    if (seen_) end_at_once(signal);
    seen_ = true;
    asked_.release();
  }

  std::atomic<bool> ready_{false};
  bool seen_ = false;
  std::binary_semaphore asked_{0};
  SignalWatch watch_;
};

void set_chat(const TextModel& text, ServedModel& served) {
  served.encode_chat = [&text](const std::vector<server::PromptSegment>& segments) {
    std::vector<text::Segment> views;
    for (const auto& segment : segments) views.push_back({segment.text, segment.trusted});
    return text.tokenizer.encode(views, {.add_bos = true});
  };
  if (!text.chat) return;
  served.render_chat =
      [&text](const server::ChatPrompt& prompt) -> Result<std::vector<server::PromptSegment>> {
    TESSERA_ASSIGN(std::vector<jinja::Segment> segments,
                   text.chat->render({.messages = prompt.messages,
                                      .tools = prompt.tools,
                                      .add_generation_prompt = prompt.add_generation_prompt,
                                      .kwargs = prompt.kwargs,
                                      .now = clock_now()}));
    std::vector<server::PromptSegment> out;
    for (jinja::Segment& segment : segments)
      out.push_back({std::move(segment.text), segment.trusted});
    return out;
  };
}

// `text` and `loaded` must outlive the server.
ServedModel served_model(const Config& config, const ModelPath& path, const Model& model,
                         const TextModel& text, const LoadedModel& loaded) {
  std::int64_t parameters = 0;
  for (const TensorSlice& slice : model.tensors()) parameters += slice.elements();
  ServedModel served;
  served.id = served_id(config, path);
  served.created = static_cast<std::int64_t>(std::time(nullptr));
  served.vocabulary = text.tokenizer.vocabulary().size();
  served.trained_context = model.spec().context_length;
  served.sampling = sampling_params(config);
  served.meta = {{"n_params", parameters}, {"size", model.file().file_bytes()}};
  served.props = {{"model",
                   {{"architecture", model.spec().architecture},
                    {"name", model.spec().name},
                    {"synthetic", path.synthetic}}}};
  served.plan = [&loaded] {
    return current_plan_json(loaded.plan, loaded.pipeline->owners(loaded.plan));
  };
  served.encode = [&text](std::string_view content, server::EncodeRules rules) {
    return text.tokenizer.encode(content,
                                 {.parse_special = rules.parse_special, .add_bos = rules.add_bos});
  };
  served.decode = [&text](const std::vector<TokenId>& ids) {
    return text.tokenizer.decode(ids, true);
  };
  served.piece = [&text](TokenId id) { return std::string(text.tokenizer.piece(id, true)); };
  set_chat(text, served);
  return served;
}

std::string address(const Config& config, std::uint16_t port) {
  std::string host = config.text("server.host");
  if (host == "0.0.0.0" || host == "::") host = "127.0.0.1";
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("http://{}:{}", host, port);
}

void greet(const std::string& url, const server::ServerOptions& options, const Plan& plan,
           const ServedModel& served, const TextModel& text) {
  print_out("\n{}\n{} is ready on {}\n", wrapped(plan_table(plan)), served.id, url);
  if (!text.chat) log_warn("{}; chat requests will be refused", text.no_chat);
  const char* key = options.api_keys.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const char* route = text.chat ? "chat/completions" : "completions";
  const char* input =
      text.chat ? R"("messages":[{"role":"user","content":"Hello"}])" : R"("prompt":"Hello")";
  // 32 tokens are an answer, but not what is thought before it.
  const char* direct =
      text.chat && text.chat->capabilities().thinking_switch ? R"(,"enable_thinking":false)" : "";
  print_out(
      "Try: curl {}/v1/{}{} -H 'Content-Type: application/json' -d '{{{},\"max_tokens\":32{}}}'\n",
      url, route, key, input, direct);
  flush_out();
  // Whoever read this may be gone; that is no failure of the server.
  std::clearerr(stdout);
}

// The plan again when other devices have the layers than before. While nobody has some, it is not
// known yet who will.
void tell_owners(const LoadedModel& loaded, std::vector<std::string>& told) {
  std::vector<std::string> owners = loaded.pipeline->owners(loaded.plan);
  if (owners == told || std::count(owners.begin(), owners.end(), "") > 0) return;
  print_out("\n{}\n", wrapped(current_plan_table(loaded.plan, owners)));
  flush_out();
  std::clearerr(stdout);
  told = std::move(owners);
}

// Until a signal asks for the end. A failed engine ends the program with a code of its own, after
// /health had the time to tell; what a lost device holds cannot be taken down in order.
void await_end(StopRequest& stop, const Engine& engine, const LoadedModel& loaded) {
  constexpr std::chrono::milliseconds kLook{200}, kTellFor{5000};
  std::vector<std::string> owners = planned_owners(loaded.plan);
  while (!stop.wait_for(kLook)) {
    tell_owners(loaded, owners);
    const EngineStatus status = engine.status();
    if (status.healthy) continue;
    log_error("the engine failed, so the server ends: {}", status.fault);
    stop.wait_for(kTellFor);
    flush_out();
    std::_Exit(kExitFault);
  }
}

// Cancels what runs. A step that waits for a worker which does not answer is not waited for.
void end_engine(Engine& engine, Pipeline& pipeline) {
  static constexpr std::chrono::seconds kStep{1};
  std::promise<void> ended;
  std::thread impatient([&pipeline, ended = ended.get_future()] {
    if (ended.wait_for(kStep) != std::future_status::ready) pipeline.give_up();
  });
  engine.drain(0.0);
  ended.set_value();
  impatient.join();
}

Status serve(const Config& config) {
  StopRequest stop;
  MetricsRegistry metrics;
  // In this order: the server goes first, then the engine, then what both use.
  std::optional<Model> model;
  std::optional<TextModel> text;
  LoadedModel loaded;
  std::unique_ptr<LocalEngine> engine;

  TESSERA_ASSIGN(const server::ServerOptions options, server_options(config));
  // A file that cannot be served is found before anyone is told to wait for it.
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(model, Model::open(path.path));
  TESSERA_ASSIGN(text, read_text_model(model->file(), config));
  TESSERA_ASSIGN(const std::unique_ptr<Server> http, Server::start(options, metrics));
  const std::string url = address(config, http->port());
  log_info("listening on {}", url);

  TESSERA_ASSIGN(loaded, load_model(config, *model,
                                    {.parallel = kDefaultParallel,
                                     .keep_profile = true,
                                     .measure = MeasureLayers::missing,
                                     .begin_without_workers = true},
                                    metrics));
  TESSERA_ASSIGN(engine, start_engine(config, loaded, text->tokenizer, metrics));
  const ServedModel served = served_model(config, path, *model, *text, loaded);
  http->set_ready(served, *engine);
  stop.set_ready();
  greet(url, options, loaded.plan, served, *text);

  await_end(stop, *engine, loaded);
  log_info("stopping: running answers may end within {:g} s", config.number("server.drain"));
  loaded.pipeline->hurry();
  http->drain(drain_time(config));
  end_engine(*engine, *loaded.pipeline);
  log_info("stopped");
  return {};
}

}  // namespace

int serve_command(const Config& config) {
  // A reader of the output that goes away must not end the server.
  std::signal(SIGPIPE, SIG_IGN);
  return exit_code(serve(config));
}

}  // namespace tessera::cli
