// The plan with who has the layers now: a worker's may be with a device that stands in for it
// (cli/stand_ins.h), or with nobody. Pure functions.
//
//   Json body = current_plan_json(plan, pipeline.owners(plan));   // "owner" beside each "device"
//
// Only who has them, and what this process holds with them, differs from the plan: sizes, budgets
// and speeds are those that it was made with. "as_planned" of "predicted" says whether that is
// still who has them.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace tessera::cli {

// One for each shard; empty: nobody has its layers.
using Owners = std::vector<std::string>;

// Before anything happened.
Owners planned_owners(const Plan& plan);

nlohmann::ordered_json current_plan_json(const Plan& plan, const Owners& owners);
std::string current_plan_table(const Plan& plan, const Owners& owners);

}  // namespace tessera::cli
