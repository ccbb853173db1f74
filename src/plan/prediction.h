// How fast a plan is and what bounds it: from the times of its shards' layers where all were
// measured, else at most, from what the machine was measured to do.
//
//   plan.predicted = predict(model, plan, {{.read_bytes_per_s = 20e9, .op_per_s = 4e11}});
//
// By the machine: a token that is generated reads every weight of its path once; a chunk of a
// prompt reads each weight that any of its rows needs once and computes with it for every row.
// Nothing else is counted, so a run is slower: tessera bench prints by how much. Shards take turns
// with a token and work at the same time on a prompt. A worker of experts computes while its shard
// does, so the slower of both counts; with a token its round trips are added, where these were
// measured. A GPU, or a worker, reads and computes as fast as it says; one that does not say how
// fast it computes is bound by reading. What is away from a GPU the host reads meanwhile, what is
// away from a worker that worker itself.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"

namespace tessera {

// Of host_threads() together, but for what one of them reads alone: shards that take turns read one
// at a time, each at most as fast as all threads and as its own ones by themselves.
struct MeasuredSpeed {
  double read_bytes_per_s = 0.0;
  double op_per_s = 0.0;  // of matrix products; a multiply and an add are 2
  double thread_read_bytes_per_s = 0.0;
};

// Threads of the CPU shards of this process.
int host_threads(const Plan& plan);

// Who has not said how fast it reads, as the beginning of a sentence: "worker:0 has not said how
// fast it reads". Empty: all have that take part, but for this process's processors.
std::string unknown_speed(const Plan& plan);

// Nothing where neither is known: layer times say nothing of shards whose experts are away, and a
// bound wants every speed: nobody's is unknown_speed, and `speed` is there where this process's
// processors take part.
std::optional<Prediction> predict(const Model& model, const Plan& plan,
                                  const std::optional<MeasuredSpeed>& speed);

// Of a prompt of so many tokens, through all shards of a plan with a prediction.
SpeedBound predicted_prompt(const Plan& plan, int tokens);

// "at most 41.2 tokens/s, bound by reading weights"; of measured times "about"
std::string prediction_text(const Prediction& prediction, const SpeedBound& bound);

}  // namespace tessera
