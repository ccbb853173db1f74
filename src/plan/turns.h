// Turns: the layers cut into more ranges than there are devices, which go round them:
// with two turns of two GPUs the first, the second, the first and the second again.
//
// A prompt goes through the devices in pieces, one behind the other. A device waits until the first
// piece has come through the ranges before its own, and the first one at the end: with t turns a
// t-th of that. But a token that is generated crosses from device to device t times as often. That
// costs nothing worth a thought where a GPU's run hands its row to the next one's
// (device/gpu/kernels/run.h), and some 12 us a crossing elsewhere (docs/results-gpu.md, "Two GPUs
// in turns").
//
//   TESSERA_TRY(check_turns(inventory, 4));
//   const Inventory turned = with_turns(inventory, 4);   // a device for each range
//
// Pure functions.
#pragma once

#include "plan/plan.h"

namespace tessera {

// ErrorCode::invalid where a device takes no turns: only GPUs of this process do, several of them.
Status check_turns(const Model& model, const Inventory& inventory, int turns);

// The devices one after the other, so many times; each has its share of the budgets.
Inventory with_turns(const Inventory& inventory, int turns);

// How many turns cost a token nothing: 1 where its row would have to be copied between devices.
int free_turns(const Model& model, const Inventory& inventory, const PlanOptions& options);

}  // namespace tessera
