// tessera calibrate: runs a text through the model and writes which experts it chose.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "cli/commands.h"
#include "cli/expert_options.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/text_model.h"
#include "model/has_experts.h"
#include "model/identity.h"

namespace tessera::cli {
namespace {

constexpr int kDefaultContext = 2048;

std::string default_path(const std::string& model) {
  return std::filesystem::path(model).replace_extension(".spark.csv").string();
}

// Before the work.
Status check_model_and_target(const Model& model, const std::string& path,
                              const std::string& target) {
  if (!has_experts(model.spec()))
    return Error::make(ErrorCode::unsupported, "{}: the model has no routed experts", path);
  TESSERA_TRY(check_profile_folder("--out", target));
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target))
    return Error::make(ErrorCode::invalid, "--out {}: it is there and is no ordinary file", target);
  return {};
}

// A file of something else would be counted as text, and a profile of noise be the result.
Status check_text(const std::string& text, const std::string& path) {
  const std::size_t zero = text.find('\0');
  if (zero == std::string::npos) return {};
  return Error::make(ErrorCode::invalid, "--text {}: this is no text, its byte {} is 0", path,
                     zero);
}

// The text as sequences of the context's length, one after the other.
Status feed(LoadedModel& loaded, std::span<const TokenId> tokens) {
  Progress progress({.what = "counting", .unit = ProgressUnit::steps});
  const auto context = static_cast<std::size_t>(loaded.plan.context);
  const auto chunk = static_cast<std::size_t>(loaded.plan.prefill_chunk);
  for (std::size_t start = 0; start < tokens.size(); start += context) {
    const std::size_t length = std::min(context, tokens.size() - start);
    TESSERA_ASSIGN(SequenceState state, loaded.pool->admit(static_cast<int>(length)));
    loaded.pipeline->reset_slot(state.slot());
    for (std::size_t at = 0; at < length; at += chunk) {
      const std::size_t n = std::min(chunk, length - at);
      state.extend(static_cast<int>(n));
      const SequenceRows rows{.n_rows = static_cast<int>(n),
                              .first_position = static_cast<int>(at),
                              .slot = state.slot(),
                              .pages = state.page_tables()};
      TESSERA_TRY(loaded.pipeline->forward(
          {.tokens = tokens.subspan(start + at, n), .sequences = {&rows, 1}, .logit_rows = {}}));
      state.trim(static_cast<int>(at + n));
      progress.update(static_cast<std::int64_t>(start + at + n),
                      static_cast<std::int64_t>(tokens.size()));
    }
    TESSERA_TRY(loaded.pipeline->finish());
  }
  return {};
}

// A worker that went before it had told all would leave a profile of a part of the text.
Status check_counted(const ModelSpec& spec, const RoutingProfile& profile, std::size_t tokens) {
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    if (!spec.layers[l].moe) continue;
    const std::vector<double>& counts = profile.counts()[l];
    const double rows =
        std::accumulate(counts.begin(), counts.end(), 0.0) / spec.layers[l].moe->n_used;
    if (rows < static_cast<double>(tokens))
      return Error::make(ErrorCode::unavailable,
                         "layer {}: its worker told of {:.0f} of {} tokens; calibrate again", l,
                         rows, tokens);
  }
  return {};
}

Status calibrate(const Config& config) {
  const std::string& path = config.arguments().front();
  TESSERA_ASSIGN(const std::string text, read_text_file(config.text("calibrate.text")));
  TESSERA_TRY(check_text(text, config.text("calibrate.text")));
  TESSERA_ASSIGN(const Model model, Model::open(path));
  const std::string& out = config.text("calibrate.out");
  const std::string target = out.empty() ? default_path(path) : out;
  TESSERA_TRY(check_model_and_target(model, path, target));
  TESSERA_ASSIGN(const TextModel text_model, read_text_model(model.file(), config));
  const std::vector<TokenId> tokens = text_model.tokenizer.encode(text, {.add_bos = true});
  if (tokens.empty())
    return Error::make(ErrorCode::invalid, "{}: there is no text in it",
                       config.text("calibrate.text"));

  MetricsRegistry metrics;
  const int context = std::min(kDefaultContext, model.spec().context_length);
  TESSERA_ASSIGN(LoadedModel loaded,
                 load_model(config, model, {.context = context, .count_routing = true}, metrics));
  TESSERA_TRY(feed(loaded, tokens));
  loaded.pipeline.reset();  // workers tell the last of what they counted

  RoutingProfile profile(model.spec(), digest_text(model_digest(model.file())));
  const double rows = loaded.experts.counts->take(profile, 1e12);
  TESSERA_TRY(check_counted(model.spec(), profile, tokens.size()));
  TESSERA_TRY(profile.write(target));
  print_out("{}: experts of {} tokens\n", target, static_cast<std::int64_t>(rows));
  return {};
}

}  // namespace

int calibrate_command(const Config& config) {
  return exit_code(calibrate(config));
}

}  // namespace tessera::cli
