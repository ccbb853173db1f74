#include "server/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "server/random_id.h"

namespace tessera::server {
namespace {

void read_model(FieldReader& fields, const ServedModel& model, const RequestLimits& limits) {
  const auto name = fields.text("model");
  if (name && limits.strict_model && *name != model.id) fields.fail(unknown_model(*name, model.id));
}

void read_logit_bias(FieldReader& fields, int vocabulary, SamplingParams& sampling) {
  const Json* bias = fields.object("logit_bias");
  if (!bias) return;
  FieldReader entries(*bias, "logit_bias");
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (failure != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocabulary) {
      fields.fail("logit_bias", fmt::format("has the key {}; keys are token ids from 0 to {}",
                                            shown(Json(key)), vocabulary - 1));
      return;
    }
    const auto strength = entries.number(key, -100.0, 100.0);
    if (strength) sampling.logit_bias.emplace_back(id, static_cast<float>(*strength));
  }
  if (!entries.ok()) fields.fail(entries.error());
}

// Two names for one thing: the first that is there.
std::optional<double> number_of(FieldReader& fields, const char* name, const char* alias,
                                double min, double max) {
  const auto value = fields.number(name, min, max);
  const auto other = fields.number(alias, min, max);
  return value ? value : other;
}

void set(float& target, const std::optional<double>& value) {
  if (value) target = static_cast<float>(*value);
}

SamplingParams read_sampling(FieldReader& fields, const ServedModel& model) {
  SamplingParams sampling = model.sampling;
  set(sampling.temperature, fields.number("temperature", 0.0, 5.0));
  set(sampling.top_p, fields.number("top_p", 0.0, 1.0));
  set(sampling.min_p, fields.number("min_p", 0.0, 1.0));
  set(sampling.frequency_penalty, fields.number("frequency_penalty", -2.0, 2.0));
  set(sampling.presence_penalty, fields.number("presence_penalty", -2.0, 2.0));
  set(sampling.repetition_penalty,
      number_of(fields, "repetition_penalty", "repeat_penalty", 0.01, 100.0));
  if (const auto k = fields.integer("top_k", -1, std::numeric_limits<int>::max())) {
    sampling.top_k = static_cast<int>(std::max<std::int64_t>(*k, 0));
  }
  if (const auto window = fields.integer("repeat_last_n", 0, 1 << 20)) {
    sampling.repetition_window = static_cast<int>(*window);
  }
  constexpr auto kLimits = std::numeric_limits<std::int64_t>();
  if (const auto seed = fields.integer("seed", kLimits.min(), kLimits.max())) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
  }
  read_logit_bias(fields, model.vocabulary, sampling);
  return sampling;
}

std::vector<std::string> read_stop(FieldReader& fields, int most) {
  constexpr const char* kExpected = "a string or a list of strings, none of them empty";
  const Json* stop = fields.any("stop");
  std::vector<std::string> out;
  if (!stop) return out;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > static_cast<std::size_t>(most)) {
    fields.fail("stop", fmt::format("has {} strings; at most {} are allowed", list.size(), most));
    return out;
  }
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) {
      fields.fail("stop", fmt::format("holds {}; it must be {}", shown(entry), kExpected));
      return out;
    }
    out.push_back(entry.get<std::string>());
  }
  return out;
}

void read_streaming(FieldReader& fields, GenerationFields& out) {
  out.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    FieldReader inner(*options, "stream_options");
    out.include_usage = inner.boolean("include_usage").value_or(false);
    if (!inner.ok()) fields.fail(inner.error());
  }
}

// Constraints that other servers know. To leave one out silently would change the answer.
void refuse_constraints(FieldReader& fields) {
  for (const char* name : {"grammar", "json_schema", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs"}) {
    fields.refuse(name, "output cannot be constrained to a grammar or schema");
  }
  fields.refuse("use_beam_search", "there is only sampling and greedy decoding");
}

}  // namespace

GenerationFields read_generation_fields(FieldReader& fields, const ServedModel& model,
                                        const RequestLimits& limits) {
  GenerationFields out;
  read_model(fields, model, limits);
  out.sampling = read_sampling(fields, model);
  out.stop = read_stop(fields, limits.max_stops);
  out.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  out.n = static_cast<int>(fields.integer("n", 1, limits.max_choices).value_or(1));
  read_streaming(fields, out);
  refuse_constraints(fields);
  fields.ignore({"user", "store", "metadata", "service_tier", "safety_identifier", "prediction",
                 "prompt_cache_key", "session_id", "cache_prompt", "timings_per_token"});
  // One random seed for all choices, so that the one that is reported brings all of them back.
  if (out.n > 1 && !out.sampling.seed) out.sampling.seed = random_seed();
  return out;
}

}  // namespace tessera::server
