// Turns: the layers cut into more ranges than there are devices, which go round them:
// with two turns of two GPUs the first, the second, the first and the second again.
//
// A prompt goes through the devices in pieces, one behind the other. A device waits until the first
// piece has come through the ranges before its own, and the first one at the end: with t turns a
// t-th of that. But a token that is generated crosses from device to device t times as often, which
// is cheap where GPUs hand their rows over (device/gpu/kernels/handover.h), and cheapest from run
// to run.
//
//   TESSERA_TRY(check_turns(model, inventory, 4));
//   const Inventory turned = with_turns(inventory, 4);   // a device for each range
//
// Pure functions.
#pragma once

#include "plan/plan.h"

namespace tessera {

// With fewer, rows of a step that follow each other through the devices leave these idle for longer
// than they save.
inline constexpr int kLeastTurnsAbreast = 3;

// ErrorCode::invalid where a device takes no turns: only GPUs of this process do, several of them.
Status check_turns(const Model& model, const Inventory& inventory, int turns);

// The devices one after the other, so many times; those of one share its budget.
Inventory with_turns(const Inventory& inventory, int turns);

// How many turns cost a token next to nothing: 1 where rows are not handed over, or a token takes
// little time in all.
int free_turns(const Model& model, const Inventory& inventory, const PlanOptions& options);

}  // namespace tessera
