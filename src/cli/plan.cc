#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/wrap.h"

namespace tessera::cli {
namespace {

Result<std::optional<DrafterSpec>> drafter_of(const Config& config, const Model& model) {
  const std::string& path = config.text("plan.draft");
  if (path.empty()) return std::optional<DrafterSpec>();
  TESSERA_ASSIGN(const gguf::File file, gguf::File::open(path));
  Result<DrafterSpec> drafter = read_drafter(file, model.spec());
  if (!drafter) return std::move(drafter).error().in(path);
  return std::optional(*std::move(drafter));
}

Status print_plan(const Config& config) {
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(const Model model, Model::open(path.path));
  TESSERA_ASSIGN(const std::optional<DrafterSpec> drafter, drafter_of(config, model));
  TESSERA_ASSIGN(const Plan plan,
                 plan_model(config, model, {.keep_profile = true, .drafter = drafter}));
  print_out(config.flag("output.json") ? json_text(plan_json(plan), 2) + "\n"
                                       : wrapped(plan_table(plan)));
  return {};
}

}  // namespace

int plan_command(const Config& config) {
  return exit_code(print_plan(config));
}

}  // namespace tessera::cli
