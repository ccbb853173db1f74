// GpuStep: a dense model's layers as runs (kernels/dense_run.h), and attention between them.
#include <algorithm>

#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {

Status GpuStep::prepare_dense_runs() {
  if (!has_dense_runs(launch_)) return {};
  const StepShape shape{.rows = 1, .sequences = 1, .max_sequence_rows = 1};
  std::vector<RunLayer> layers;
  for (int layer = memory_.shard.first_layer; layer < memory_.shard.end_layer; ++layer) {
    layers.push_back(mixer_calls(layer, shape));
    layers.back().ffn = ffn(layer, shape);
  }
  std::vector<std::byte> plans(dense_runs_bytes(static_cast<int>(layers.size())));
  dense_places_ = write_dense_runs(layers, plans.data());
  TESSERA_TRY(clear_passed());
  return status_of(
      GPU(Memcpy)(memory_.scratch.run_plans, plans.data(), plans.size(), GPU(MemcpyHostToDevice)),
      "plans");
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

// Where a layer attends, a run ends behind its projections in, and the next one begins with the
// projection out.
Status GpuStep::run_dense_layers(int first, int layers, const StepShape& shape) const {
  const Scratch& s = memory_.scratch;
  const int all = first + layers;
  const auto attends = [&](int layer) { return layer_spec(layer).attention() != nullptr; };
  const auto status = [](int error, int layer) {
    return status_of(error, fmt::format("mixer of layer {}", layer).c_str());
  };
  bool from_out = false;
  while (first < all) {
    const RunLayer calls = mixer_calls(first, shape);
    if (!from_out && attends(first)) {
      TESSERA_TRY(status(project(launch_, calls.in), first));
      TESSERA_TRY(status(attention(launch_, calls.attention), first));
      from_out = true;
    }
    int end = first + 1;
    while (end < all && !attends(end) && end - first + 1 < kMostRunLayers) ++end;
    const bool to_in = end < all && attends(end);
    const int error = run_dense(launch_, {.plans = s.run_plans,
                                          .places = static_cast<int>(dense_places_.size()),
                                          .first = dense_place(first),
                                          .n_layers = end - first + (to_in ? 1 : 0),
                                          .from_out = from_out,
                                          .to_in = to_in,
                                          .mixed = calls.out.input.x,
                                          .hidden = s.hidden,
                                          .passed = s.run_passed,
                                          .sequences = s.sequences});
    if (error != 0) return status_of(error, fmt::format("layers {} to {}", first, end - 1).c_str());
    if (to_in) TESSERA_TRY(status(attention(launch_, mixer_calls(end, shape).attention), end));
    first = end;
    from_out = to_in;
  }
  return {};
}

}  // namespace tessera::gpu
