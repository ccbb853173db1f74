// GpuStep: a dense model's layers as runs (kernels/dense_run.h).
#include <algorithm>
#include <utility>

#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {

Status GpuStep::prepare_dense_runs(const LoadQueue& queue) {
  if (!has_dense_runs(launch_)) return {};
  const StepShape shape{.rows = 1, .sequences = 1, .max_sequence_rows = 1};
  std::vector<RunLayer> layers;
  for (int layer = memory_.shard.first_layer; layer < memory_.shard.end_layer; ++layer) {
    layers.push_back(mixer_calls(layer, shape));
    layers.back().ffn = ffn(layer, shape);
  }
  const Scratch& s = memory_.scratch;
  if (s.run_log != nullptr) TESSERA_TRY(queue.fill(s.run_log, 0, s.run_log_bytes, "the log"));
  std::vector<std::byte> plans(dense_runs_bytes(static_cast<int>(layers.size())));
  dense_places_ = write_dense_runs(layers, plans.data());
  TESSERA_TRY(clear_passed());
  return queue.send(s.run_plans, plans.data(), plans.size(), "plans");
}

int GpuStep::dense_layers() const {
  return static_cast<int>(std::count_if(dense_places_.begin(), dense_places_.end(),
                                        [](int place) { return place >= 0; }));
}

int GpuStep::dense_length(std::span<const BlockCall> calls, const StepShape& shape) const {
  if (shape.rows != 1 || shape.max_sequence_rows != 1) return 0;
  int n = 0;
  for (std::size_t at = 0; at + 1 < calls.size(); at += 2, ++n) {
    const int layer = calls[0].layer + n;
    if (calls[at] != BlockCall{Block::mixer, layer} ||
        calls[at + 1] != BlockCall{Block::ffn, layer} || dense_place(layer) < 0)
      break;
  }
  return n;
}

// Steps of one sequence follow each other in the log while nothing else touches states. The first
// of them writes states: where sequences take turns there is nothing to settle. More calls with a
// step's number belong to the same step. What is captured has no number and writes states, as do
// launches, so both find the log settled.
Status GpuStep::follow_log(std::span<const BlockCall> calls, const StepRow& row) {
  const auto of_layer = [](const BlockCall& call) {
    return call.block == Block::mixer || call.block == Block::ffn;
  };
  if (dense_layers() == 0 || std::none_of(calls.begin(), calls.end(), of_layer)) return {};
  const bool as_runs = row.step != 0 && !memory_.side.busy();
  if (as_runs && row.step == last_row_.step) return {};  // more of the same step
  const bool follows =
      as_runs && row.slot == last_row_.slot && row.position == last_row_.position + 1;
  if (!follows) TESSERA_TRY(settle_states());
  log_open_ = follows && memory_.scratch.run_log != nullptr;
  last_row_ = as_runs ? row : StepRow{};
  return {};
}

Status GpuStep::settle_states() {
  const StepRow last = std::exchange(last_row_, {});
  if (!std::exchange(log_open_, false)) return {};
  const Scratch& s = memory_.scratch;
  return status_of(settle_dense(launch_, s.run_plans, static_cast<int>(dense_places_.size()),
                                s.run_log, last.slot),
                   "settling states");
}

Status GpuStep::run_dense_layers(int first, int layers, bool logs) const {
  const Scratch& s = memory_.scratch;
  for (int end = first + layers; first < end;) {
    const int n = std::min(end - first, kMostDenseLayers);
    const int error = run_dense(launch_, {.plans = s.run_plans,
                                          .places = static_cast<int>(dense_places_.size()),
                                          .first = dense_place(first),
                                          .n_layers = n,
                                          .hidden = s.hidden,
                                          .passed = s.run_passed,
                                          .sequences = s.sequences,
                                          .log = logs ? s.run_log : nullptr});
    if (error != 0)
      return status_of(error, fmt::format("layers {} to {}", first, first + n - 1).c_str());
    first += n;
  }
  return {};
}

}  // namespace tessera::gpu
