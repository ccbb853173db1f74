#include "cli/expert_options.h"

#include <charconv>
#include <filesystem>

#include "base/log.h"
#include "cli/option_value.h"
#include "model/identity.h"

namespace tessera::cli {
namespace {

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// The profile that --expert-profile names, or an empty one where there is none yet.
Result<RoutingProfile> read_profile(const std::string& path, const Model& model, bool may_lack) {
  const std::string digest = digest_text(model_digest(model.file()));
  if (path.empty()) return RoutingProfile(model.spec(), digest);
  if (may_lack && !is_there(path)) {
    TESSERA_TRY(check_profile_folder("--expert-profile", path));
    return RoutingProfile(model.spec(), digest);
  }
  if (!is_there(path))
    return Error::make(ErrorCode::io,
                       "{}: there is no such profile; serve begins one, calibrate makes one of a "
                       "text",
                       path);
  TESSERA_ASSIGN(RoutingProfile profile, RoutingProfile::read(path));
  if (Status fits = profile.check(model.spec(), digest); !fits)
    return std::move(fits.error()).in(path);
  profile.set_model(digest);
  return profile;
}

}  // namespace

Status check_profile_folder(std::string_view option, const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  if (std::filesystem::is_directory(folder, error)) return {};
  return Error::make(ErrorCode::invalid, "{} {}: there is no folder {}", option, path,
                     folder.string());
}

Result<ExpertOptions> expert_options(const Config& config) {
  ExpertOptions options{.batch_capacity = config.small("experts.ipc_batch_capacity"),
                        .required = config.flag("experts.ipc_required")};
  TESSERA_ASSIGN(options.mode, parse_expert_mode(config.text("experts.ipc_mode")));
  TESSERA_ASSIGN(options.transport, parse_expert_transport(config.text("experts.ipc_transport")));
  TESSERA_ASSIGN(options.payload, parse_expert_payload(config.text("experts.ipc_dtype")));
  TESSERA_ASSIGN(options.prefault, parse_expert_prefault(config.text("experts.prefault")));
  TESSERA_ASSIGN(options.stream, parse_expert_stream(config.text("experts.stream")));
  options.foresee = config.text("experts.foresee") == "on";
  return options;
}

Result<std::optional<double>> expert_resident(const Config& config) {
  std::string_view text = config.text("experts.resident");
  if (text == "auto") return std::optional<double>();
  if (text == "all") return std::optional<double>(100.0);
  if (text.ends_with('%')) text.remove_suffix(1);
  double percent = -1.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(percent >= 0.0 && percent <= 100.0))
    return Error::make(ErrorCode::invalid, "{} {}: give auto, all, or percent from 0 to 100",
                       config.name_as_given("experts.resident"), config.text("experts.resident"));
  return std::optional<double>(percent);
}

Result<ExpertSpare> expert_spare(const Config& config) {
  constexpr int kMostPlaces = 65536;
  const std::string& text = config.text("experts.cache");
  int places = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), places);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && places >= 0 && places <= kMostPlaces) return ExpertSpare{.places = places};
  const std::optional<std::int64_t> bytes = whole ? std::nullopt : parse_bytes(text);
  if (bytes && *bytes > 0) return ExpertSpare{.bytes = *bytes};
  return Error::make(
      ErrorCode::invalid,
      "{} {}: give places a layer from 0 to {}, or bytes with their unit, as in 2GiB",
      config.name_as_given("experts.cache"), text, kMostPlaces);
}

Status set_expert_plan(const Config& config, const Model& model, bool may_lack,
                       PlanOptions& options) {
  TESSERA_ASSIGN(options.expert_resident, expert_resident(config));
  TESSERA_ASSIGN(const ExpertOptions experts, expert_options(config));
  options.expert_job_rows = experts.most_job_rows();
  options.expert_stream = experts.stream != ExpertStream::off;
  options.expert_workers_required = config.flag("experts.ipc_required");
  TESSERA_ASSIGN(options.expert_spare, expert_spare(config));
  const std::string& path = config.text("experts.profile");
  if (path.empty()) return {};
  TESSERA_ASSIGN(const RoutingProfile profile, read_profile(path, model, may_lack));
  options.expert_counts = profile.counts();
  return {};
}

void tell_missing_profile(const Config& config) {
  const std::string& path = config.text("experts.profile");
  if (!path.empty() && !is_there(path))
    log_info("{} is not there yet: serve begins it, and plans as if all experts were as likely",
             path);
}

Result<ExpertRuntime> expert_runtime(const Config& config, const Model& model, bool keep,
                                     MetricsRegistry& metrics) {
  ExpertRuntime runtime;
  runtime.metrics = std::make_unique<ExpertMetrics>(metrics);
  const std::string& path = config.text("experts.profile");
  if (!keep || path.empty()) return runtime;
  TESSERA_ASSIGN(RoutingProfile profile, read_profile(path, model, true));
  if (!is_there(path)) log_info("{}: a routing profile is begun", path);
  runtime.counts = std::make_unique<RoutingCounts>(model.spec());
  runtime.keeper = std::make_unique<ProfileKeeper>(
      *runtime.counts, std::move(profile),
      ProfileKeeperOptions{.path = path, .failures = &profile_failures(metrics)});
  return runtime;
}

}  // namespace tessera::cli
