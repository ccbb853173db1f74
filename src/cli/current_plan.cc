#include "cli/current_plan.h"

namespace tessera::cli {
namespace {

bool stands_in(const std::string& owner, const ShardPlan& shard) {
  return !owner.empty() && owner != shard.device;
}

// Layers that somebody here stands in for are this process's.
Plan current_plan(Plan plan, const Owners& owners) {
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (stands_in(owners[i], plan.shards[i])) plan.shards[i].remote = false;
  return plan;
}

}  // namespace

Owners planned_owners(const Plan& plan) {
  Owners owners;
  for (const ShardPlan& shard : plan.shards) owners.push_back(shard.device);
  return owners;
}

nlohmann::ordered_json current_plan_json(const Plan& plan, const Owners& owners) {
  nlohmann::ordered_json json = plan_json(current_plan(plan, owners));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    nlohmann::ordered_json& owner = json["shards"][i]["owner"];
    if (!owners[i].empty()) owner = owners[i];  // else null
  }
  // Who stands in was not there when speeds were predicted.
  if (nlohmann::ordered_json& predicted = json["predicted"]; !predicted.is_null())
    predicted["as_planned"] = owners == planned_owners(plan);
  return json;
}

std::string current_plan_table(const Plan& plan, const Owners& owners) {
  Plan now = current_plan(plan, owners);
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (stands_in(owners[i], plan.shards[i]))
      now.shards[i].device = fmt::format("{} for {}", owners[i], plan.shards[i].device);
  return plan_table(now);
}

}  // namespace tessera::cli
