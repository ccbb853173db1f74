// What another placement on the same devices would do better, in one line; empty: nothing is known.
//
//   plan.advice = topology_advice(model, inventory, options, plan);
//
// Pure. Where all weights fit as contiguous layers, nobody has to wait for experts elsewhere. That
// is not said of experts in a worker that may win by its own memory: one on another machine.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tessera {

std::string topology_advice(const Model& model, const Inventory& inventory,
                            const PlanOptions& options, const Plan& plan);

}  // namespace tessera
