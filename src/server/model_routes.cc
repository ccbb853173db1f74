#include "server/model_routes.h"

#include <fmt/chrono.h>

#include <ctime>

namespace tessera::server {
namespace {

std::string rfc3339(std::int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", parts);
}

Json sampling_json(const SamplingParams& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"repeat_last_n", sampling.repetition_window},
          {"frequency_penalty", sampling.frequency_penalty},
          {"presence_penalty", sampling.presence_penalty}};
}

}  // namespace

Json model_json(const ServedModel& model, int context) {
  Json meta = {{"n_ctx_train", model.trained_context}, {"n_vocab", model.vocabulary}};
  meta.update(model.meta);
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "tessera"},
          {"type", "model"},
          {"display_name", model.id},
          {"created_at", rfc3339(model.created)},
          {"max_input_tokens", context},
          {"max_tokens", context},
          {"context_length", context},
          {"max_model_len", context},
          {"meta", std::move(meta)}};
}

Json models_json(const ServedModel& model, int context) {
  return {{"object", "list"},
          {"data", Json::array({model_json(model, context)})},
          {"has_more", false},
          {"first_id", model.id},
          {"last_id", model.id}};
}

Json props_json(const ServedModel& model, const EngineStatus& status,
                const ServerOptions& options) {
  Json out = {{"build", {{"version", options.version}}},
              {"model", {{"id", model.id}, {"n_ctx_train", model.trained_context}}},
              {"limits",
               {{"n_ctx", status.context},
                {"slots", status.parallel},
                {"max_queue", status.max_queue},
                {"max_choices", options.requests.max_choices},
                {"max_body", options.max_body}}},
              {"sampling_defaults", sampling_json(model.sampling)},
              {"chat_template", static_cast<bool>(model.render_chat)},
              {"tool_parser", nullptr},
              {"reasoning_parser", nullptr},
              {"plan", model.plan()},
              {"away", status.away}};
  for (const auto& [name, value] : model.props.items()) {
    if (out.contains(name) && out[name].is_object() && value.is_object()) {
      out[name].update(value);
    } else {
      out[name] = value;
    }
  }
  return out;
}

}  // namespace tessera::server
