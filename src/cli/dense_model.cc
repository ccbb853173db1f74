#include "cli/dense_model.h"

#include <algorithm>

#include "base/log.h"
#include "cli/option_table.h"
#include "cli/spawn_requests.h"
#include "model/has_experts.h"

namespace tessera::cli {
namespace {

Error no_experts(const std::string& option) {
  return Error::make(ErrorCode::invalid, "{}: the model has no routed experts; leave it out",
                     option);
}

}  // namespace

Status check_dense_model(const Config& config, const Model& model) {
  if (has_experts(model.spec())) return {};
  TESSERA_ASSIGN(const std::vector<SpawnRequest> spawned, spawn_requests(config));
  const auto computes_experts = [](const SpawnRequest& request) {
    return request.role == worker::Role::experts;
  };
  if (std::any_of(spawned.begin(), spawned.end(), computes_experts)) {
    const bool by_binary = config.given("worker.expert_bin");
    return no_experts(by_binary ? config.name_as_given("worker.expert_bin")
                                : config.name_as_given("worker.spawn") + " experts");
  }
  if (config.given("worker.experts")) return no_experts(config.name_as_given("worker.experts"));
  for (const Option& option : option_table()) {
    if (!option.key.starts_with("experts.") || !config.given(option.key)) continue;
    const std::string name = config.name_as_given(option.key);
    if (!config.given_by_file(option.key)) return no_experts(name);
    log_warn("{}: means nothing here, the model has no routed experts", name);
  }
  return {};
}

}  // namespace tessera::cli
