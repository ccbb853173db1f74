// What speed a plan can reach at most, and what bounds it, from what the machine was measured to
// do.
//
//   plan.predicted = predict(model, plan, {.read_bytes_per_s = 20e9, .op_per_s = 4e11});
//
// A token that is generated reads every weight of its path once; a chunk of a prompt reads each
// weight that any of its rows needs once and computes with it for every row. Shards take turns with
// a token and work at the same time on a prompt. Nothing else is counted, so a run is slower:
// tessera bench prints by how much.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tessera {

// Of this process's threads together.
struct MeasuredSpeed {
  double read_bytes_per_s = 0.0;
  double op_per_s = 0.0;  // of matrix products; a multiply and an add are 2
};

Prediction predict(const Model& model, const Plan& plan, const MeasuredSpeed& speed);

// "at most 41.2 tokens/s, bound by reading weights"
std::string prediction_text(const SpeedBound& bound);

}  // namespace tessera
