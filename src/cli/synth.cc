#include "model/synth.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/nearest.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "plan/plan.h"

namespace tessera::cli {
namespace {

Status synth(const SynthOptions& options, const std::string& path) {
  std::int64_t bytes = 0;
  {
    Progress progress({.what = "writing " + path});
    TESSERA_TRY(write_synthetic_model(options, path, [&](std::int64_t done, std::int64_t total) {
      bytes = total;
      progress.update(done, total);
    }));
  }
  log_info("wrote {}: {} of random {} weights", path, format_bytes(bytes), options.family);
  return {};
}

}  // namespace

int synth_command(const Config& config) {
  const SynthOptions options{.family = config.arguments()[0],
                             .preset = config.text("synth.preset"),
                             .types = config.text("synth.types"),
                             .seed = static_cast<std::uint64_t>(config.integer("synth.seed")),
                             .overrides = config.list("synth.set"),
                             .hollow = config.flag("synth.hollow")};
  const std::vector<std::string> families = synth_families();
  if (std::find(families.begin(), families.end(), options.family) == families.end())
    return misuse(Error::make(ErrorCode::invalid, "'{}' is none of the families {}{}",
                              options.family, fmt::join(families, ", "),
                              did_you_mean(options.family, families)));
  return exit_code(synth(options, config.arguments()[1]));
}

}  // namespace tessera::cli
