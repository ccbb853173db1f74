// GpuStep: which layers of a step go as runs, and how a step is enqueued with them
// (kernels/run.h).
#include <algorithm>

#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {
namespace {

// Whether the calls of a step of 2 to 8 rows begin with a mixer and its FFN.
bool begin_with_layer(std::span<const BlockCall> calls, const StepShape& shape) {
  return shape.rows >= 2 && shape.rows <= kDecodeRows && calls.size() >= 2 &&
         calls[0].block == Block::mixer && calls[1] == BlockCall{Block::ffn, calls[0].layer};
}

// Whether it is part of a layer.
bool is_layers(Block block) {
  using enum Block;
  return block != begin && block != embed && block != head && block != take_rows &&
         block != hand_rows;
}

}  // namespace

bool GpuStep::may_run() const {
  return memory_.scratch.run_plans != nullptr && (has_runs(launch_) || has_dense_runs(launch_));
}

Status GpuStep::prepare_runs(const LoadQueue& queue) {
  const Scratch& s = memory_.scratch;
  if (dense_layers_may_run(memory_.spec, memory_.shard)) return prepare_dense_runs(queue);
  if (!has_runs(launch_)) return {};
  const StepShape shape{.rows = 1, .sequences = 1, .max_sequence_rows = 1};
  std::vector<std::byte> plans;
  for (int layer = memory_.shard.first_layer; layer < memory_.shard.end_layer; ++layer) {
    if (!layer_may_run(memory_.spec, memory_.shard, layer)) continue;
    RunLayer l = mixer_calls(layer, shape);
    l.ffn = ffn(layer, shape);
    if (!fits_run(l)) continue;
    run_places_[static_cast<std::size_t>(layer - memory_.shard.first_layer)] =
        static_cast<int>(plans.size() / run_layer_bytes());
    plans.resize(plans.size() + run_layer_bytes());
    write_run_layer(l, plans.data() + plans.size() - run_layer_bytes());
  }
  if (plans.empty()) return {};
  TESSERA_TRY(clear_passed());
  return queue.send(s.run_plans, plans.data(), plans.size(), "plans");
}

int GpuStep::run_layers() const {
  return static_cast<int>(
      std::count_if(run_places_.begin(), run_places_.end(), [](int place) { return place >= 0; }));
}

int GpuStep::run_length(std::span<const BlockCall> calls, const StepShape& shape) const {
  const int abreast = shape.handed ? memory_.shard.rows_abreast : 1;
  const int most = std::min(kDecodeRows, kMostRunRows * abreast);
  if (shape.rows > most || shape.max_sequence_rows != 1) return 0;
  int n = 0;
  for (; n < kMostRunLayers; ++n) {
    const std::size_t at = 2 * static_cast<std::size_t>(n);
    const int layer = calls[0].layer + n;
    if (at + 1 >= calls.size() || calls[at] != BlockCall{Block::mixer, layer} ||
        calls[at + 1] != BlockCall{Block::ffn, layer} || run_place(layer) < 0 ||
        run_place(layer) != run_place(calls[0].layer) + n)
      break;
  }
  return n;
}

bool GpuStep::all_in_runs(std::span<const BlockCall> calls, const StepShape& shape) const {
  while (!calls.empty()) {
    const int layers = std::max(run_length(calls, shape), dense_length(calls, shape));
    if (layers == 0 && is_layers(calls[0].block)) return false;
    calls = calls.subspan(layers == 0 ? 1 : 2 * static_cast<std::size_t>(layers));
  }
  return true;
}

Status GpuStep::run(std::span<const BlockCall> calls, const StepShape& shape,
                    std::int32_t number) const {
  bool routed = false;  // the last mixer took its FFN's router along
  bool takes = false;   // the run that follows takes its rows itself
  while (!calls.empty()) {
    std::size_t taken = 1;
    // Beside experts on their way there is no run: its blocks would wait until those that bring
    // them have left their multiprocessors (docs/results-gpu.md, Whole layers in turns).
    if (const int layers = memory_.side.busy() ? 0 : run_length(calls, shape); layers > 0) {
      taken = 2 * static_cast<std::size_t>(layers);
      const bool hands =
          number != 0 && taken < calls.size() && calls[taken].block == Block::hand_rows;
      TESSERA_TRY(run_as_one(calls[0].layer, layers, shape, {takes, hands, number}));
      takes = false;
      taken += hands ? 1 : 0;
    } else if (const int dense = memory_.side.busy() ? 0 : dense_length(calls, shape); dense > 0) {
      taken = 2 * static_cast<std::size_t>(dense);
      TESSERA_TRY(run_dense_layers(calls[0].layer, dense, number != 0 && log_open_));
    } else if (number != 0 && calls[0].block == Block::take_rows && !memory_.side.busy() &&
               run_length(calls.subspan(1), shape) > 0) {
      takes = true;
    } else if (leads(calls, shape)) {
      const bool next = routes(calls.subspan(1), shape);
      TESSERA_TRY(run_leading(calls[1].layer, shape, routed, next));
      routed = next;
      taken = 2;
    } else if (begins(calls, shape)) {
      routed = routes(calls, shape);
      TESSERA_TRY(run_first(calls[0].layer, shape, routed));
    } else {
      if (calls[0].block != Block::ffn) routed = routes(calls, shape);
      TESSERA_TRY(run(calls[0], shape, routed));
      if (calls[0].block == Block::ffn) routed = false;
    }
    calls = calls.subspan(taken);
  }
  return {};
}

bool GpuStep::routes(std::span<const BlockCall> calls, const StepShape& shape) const {
  if (!begin_with_layer(calls, shape)) return false;
  const int layer = calls[0].layer;
  return gpu::routes(mixer_calls(layer, shape).out, ffn(layer, shape));
}

bool GpuStep::leads(std::span<const BlockCall> calls, const StepShape& shape) const {
  if (shape.rows < 2 || shape.rows > kDecodeRows || calls.size() < 2 ||
      calls[0].block != Block::ffn)
    return false;
  const int next = calls[0].layer + 1;
  return calls[1] == BlockCall{Block::mixer, next} &&
         leads_to(ffn(next - 1, shape), mixer_calls(next, shape).in);
}

bool GpuStep::begins(std::span<const BlockCall> calls, const StepShape& shape) const {
  if (!begin_with_layer(calls, shape)) return false;
  const int layer = calls[0].layer;
  return leads_to(ffn(layer, shape), mixer_calls(layer, shape).in);
}

Status GpuStep::run_leading(int layer, const StepShape& shape, bool ffn_routed, bool routed) const {
  const RunLayer calls = mixer_calls(layer, shape, routed);
  const int error = ffn_and_next(launch_, ffn(layer - 1, shape, ffn_routed), calls.in);
  if (error != 0) return status_of(error, fmt::format("FFN of layer {}", layer - 1).c_str());
  return run_led(layer, calls);
}

Status GpuStep::run_first(int layer, const StepShape& shape, bool routed) const {
  const RunLayer calls = mixer_calls(layer, shape, routed);
  const int error = project_first(launch_, ffn(layer, shape), calls.in);
  if (error != 0) return status_of(error, fmt::format("mixer of layer {}", layer).c_str());
  return run_led(layer, calls);
}

Status GpuStep::run_led(int layer, RunLayer calls) const {
  const LayerWeights& w = memory_.weights.layer(layer);
  const GateProducts gates{calls.in.input, w.matrix(TensorRole::gdn_alpha),
                           w.matrix(TensorRole::gdn_beta)};
  ProjectArgs left = plain_outputs(calls.in);
  // Two that are plain: these, and no other.
  if (left.n_outputs == 2 && layer_spec(layer).gated_delta() != nullptr &&
      makes_gates(launch_, calls.delta, gates)) {
    calls.delta.gates = gates;
    left.n_outputs = 0;
  }
  int error = left.n_outputs > 0 ? project(launch_, left) : 0;
  if (error == 0) error = mix(layer, calls);
  return error == 0 ? Status{} : status_of(error, fmt::format("mixer of layer {}", layer).c_str());
}

Status GpuStep::run_as_one(int first, int layers, const StepShape& shape,
                           const Handover& handover) const {
  const Scratch& s = memory_.scratch;
  const auto row_bytes = as_size(handover_bytes(memory_.spec.n_embd));
  for (int row = 0; row < shape.rows; ++row) {
    const std::size_t at = as_size(row) * row_bytes;
    // Chained, it might read the step's sequences before they are there: nothing need be between.
    Launch launch = launch_;
    launch.chained = launch_.chained && !(handover.takes && row == 0);
    const int error = gpu::run_layers(
        launch,
        {.plans = s.run_plans + run_layer_bytes() * static_cast<std::size_t>(run_place(first)),
         .n_layers = layers,
         .hidden = s.hidden,
         .passed = s.run_passed,
         .sequences = s.sequences,
         .row = row,
         .taken = handover.takes ? s.handed + at : nullptr,
         .handed = handover.hands ? next_handed_ + at : nullptr,
         .number = static_cast<std::uint32_t>(handover.number),
         .most_ns = memory_.most_ns});
    if (error != 0)
      return status_of(error, fmt::format("layers {} to {}", first, first + layers - 1).c_str());
  }
  return {};
}

// Numbers last for kMostRuns runs: then all that was passed is forgotten.
Status GpuStep::before(std::span<const BlockCall> calls, const StepShape& shape,
                       const StepRow& row) {
  TESSERA_TRY(follow_log(calls, row));
  int runs = together_runs(shape);
  while (!calls.empty()) {
    const int as_one = run_length(calls, shape), dense = dense_length(calls, shape);
    // A dense run counts as two, and each layer may be one.
    runs += as_one > 0 ? shape.rows : 2 * dense;
    const int layers = std::max(as_one, dense);
    calls = calls.subspan(layers == 0 ? 1 : 2 * static_cast<std::size_t>(layers));
  }
  const auto n = static_cast<std::uint32_t>(runs);
  if (kMostRuns - runs_ < n) TESSERA_TRY(clear_passed());
  runs_ += n;
  return {};
}

int GpuStep::together_runs(const StepShape& shape) const {
  const int layers = run_layers();
  if (shape.rows < 2 || shape.rows > kDecodeRows || layers == 0) return 0;
  return (layers + kMostRunLayers - 1) / kMostRunLayers;
}

Status GpuStep::clear_passed() {
  const Scratch& s = memory_.scratch;
  runs_ = 0;
  return status_of(GPU(MemsetAsync)(s.run_passed, 0, static_cast<std::size_t>(s.run_passed_bytes),
                                    launch_.stream),
                   "clearing what runs pass");
}

}  // namespace tessera::gpu
