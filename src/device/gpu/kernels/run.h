// A run of layers of one row as one kernel that stays on the GPU: layers of the gated delta net or
// with attention, with experts and a dense branch, one after the other, every expert here.
//
// Six launches a layer wait for each other, and while they do memory idles. Here each
// multiprocessor holds one block from the first layer to the last; what it will multiply with comes
// into its shared memory ahead of time, and values pass between blocks without a barrier
// (run_values.cuh). Results have the same bits as those of project(), gated_delta() or attention(),
// and ffn_all().
//
//   write_run_layer(layer, host);   // once each, where has_runs() and fits_run(); then to `plans`
//   run_layers(launch, {.plans = plans, .n_layers = 3, .hidden = hidden, .passed = passed,
//                       .sequences = sequences});
//
// The kernel is made for one shape (run_plan.h): a residual of 2,048 columns; 32 value heads of
// 128, or 16 query heads of 256 on two of keys in f16 pages; 8 of 256 experts of 512 columns; Q4_K
// and Q6_K. And for GPUs with Hopper's bulk copies and 132 multiprocessors or more. All else goes
// layer by layer.
//
// Blocks wait for each other, so all must be on the GPU at once: nothing that waits for this kernel
// may run beside it, and no other run, nor an FFN of several rows (ffn_together.cu) or the
// projections ahead of it (project_route.cu, project_first.cu), of the same process but the one
// before on the stream, whose blocks end as this one's begin. A block that has looked for a value
// kPatience times (run_values.cuh) ends the program on the device with an error. Weights, states,
// page tables, pages and `sequences` are read ahead of the end of the kernel before on the stream,
// which must not write them; of pages not the row's own token.
#pragma once

#include "device/gpu/kernels/kernels.h"

namespace tessera::gpu {

// One layer, as the calls would be given it; what they pass to each other stays unwritten.
struct RunLayer {
  ProjectArgs in;           // qkv, gate, alpha, beta; or queries with gates, keys, values
  DeltaArgs delta;          // the one ...
  AttentionArgs attention;  // ... or, where n_head is not 0, the other
  ProjectArgs out;
  FfnArgs ffn;
};

// Whether the current device can and launches are chained, and whether a layer's shape and types
// are those of the kernel.
bool has_runs(const Launch& launch);
bool fits_run(const RunLayer& layer);
bool fits_run(const FfnArgs& ffn);
// Whether ffn_all() of several rows goes as one kernel behind the router: where FfnArgs::passed is
// there, too.
bool goes_together(const FfnArgs& ffn);
// The same as fits_run() of a model's layer whose types are not known yet.
bool may_run(const ModelSpec& spec, const LayerSpec& layer);

// Of a layer in `plans`; what write_run_layer() writes.
std::size_t run_layer_bytes();
void write_run_layer(const RunLayer& layer, std::byte* host);

// What passes between blocks, of sequences of up to `context` tokens: device memory that runs and
// FFNs of several rows (FfnArgs::passed) on one stream share, zeros at first and again behind
// kMostRuns runs, as one of which kMostRunLayers such FFNs count (run_values.cuh: no number may
// come twice).
std::size_t run_passed_bytes(std::int64_t context);
inline constexpr int kMostRunLayers = 63;
// Two rows one run after the other take less time than both in the layers' own kernels; three do
// not.
inline constexpr int kMostRunRows = 2;
inline constexpr std::uint32_t kMostRuns = (1u << 26) - 1;  // 2^32 numbers, 64 each

struct RunArgs {
  const std::byte* plans = nullptr;  // [n_layers]
  int n_layers = 0;                  // at most kMostRunLayers
  // The step's, a sequence a row; of which this is row `row`.
  float* hidden = nullptr;  // [rows][2048], read and written
  std::byte* passed = nullptr;
  const Sequence* sequences = nullptr;
  int row = 0;
  // Where the row comes from another GPU, in place of `hidden`, and where it goes to one, besides
  // (handover.h): [2048] of its places; null: nowhere. With a number that is the step's.
  const std::byte* taken = nullptr;
  std::byte* handed = nullptr;
  std::uint32_t number = 0;
  std::int64_t most_ns = 0;  // that it is waited for
};
// Writes the layers' states and pages, and the last one's moe.ids and moe.weights, of the row.
GpuError run_layers(const Launch& launch, const RunArgs& args);

// ffn_all() of 2 to 8 rows and, in the same kernel, the mixer's projections of the layer behind:
// those of its matrices that are quantised, with the bits of project() (ffn_next.cuh). Their
// weights come while the FFN ends. The plain ones are left to the caller, or to the delta rule
// where makes_gates().
//
//   if (leads_to(ffn, in)) {
//     ffn_and_next(launch, ffn, in);
//     project(launch, plain_outputs(in));  // where there are any
//   }
//
// leads_to: whether the FFN goes_together(), and `in` reads what it leaves with matrices of Q4_K
// and Q6_K, whole groups of 32 rows, 396 of them at most.
bool leads_to(const FfnArgs& ffn, const ProjectArgs& in);
GpuError ffn_and_next(const Launch& launch, const FfnArgs& ffn, const ProjectArgs& in);
ProjectArgs plain_outputs(const ProjectArgs& in);

// The same projections where no FFN has made them: a step's first ones. `ffn`: the one behind the
// mixer, which leads_to(ffn, in) and has to follow, since it counts the number under which rows
// pass.
GpuError project_first(const Launch& launch, const FfnArgs& ffn, const ProjectArgs& in);

// The projection out of a mixer and the router behind it, of 2 to 8 rows whose FFN goes_together()
// (project_route.cu): a kernel less, with the bits of project() and of the FFN's own router. The
// FFN is then told that it is `routed`.
//
//   ffn.routed = routes(out, ffn);
//   ffn.routed ? project_and_route(launch, out, ffn) : project(launch, out);
//   ffn_all(launch, ffn);
//
// The FFN has to follow: it is what counts the number under which values pass. routes: whether
// `out` is of the shape of runs, too.
bool routes(const ProjectArgs& out, const FfnArgs& ffn);
GpuError project_and_route(const Launch& launch, const ProjectArgs& out, const FfnArgs& ffn);

}  // namespace tessera::gpu
