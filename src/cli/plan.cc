#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"

namespace tessera::cli {
namespace {

Status print_plan(const Config& config) {
  TESSERA_ASSIGN(const Model model, Model::open(config.arguments().front()));
  TESSERA_ASSIGN(const Plan plan, plan_model(config, model, {}));
  print_out(config.flag("output.json") ? json_text(plan_json(plan), 2) + "\n" : plan_table(plan));
  return {};
}

}  // namespace

int plan_command(const Config& config) {
  return exit_code(print_plan(config));
}

}  // namespace tessera::cli
