// A run of a dense model's layers of one row as one kernel that stays on the GPU: gated delta nets
// or attention, and the FFNs behind them, one after the other.
//
// Five launches a layer wait for each other, and while they do memory idles: a block needs all of a
// multiprocessor, so the next one's weights cannot be on their way. Here each multiprocessor holds
// one block. A warp fetches weights into a ring, eight bring rows and step the delta net, eleven
// multiply, and none waits for the block: products begin with the columns that are there, while the
// last ones are on their way from other blocks (run_values.cuh). Results have the same bits as
// those of project(), gated_delta() or attention(), and ffn_all().
//
//   const std::vector<int> places = write_dense_runs(layers, host);  // -1: goes by launches
//   run_dense(launch, {.plans = plans, .places = 64, .first = places[0], .n_layers = 64,
//                      .hidden = hidden, .passed = passed, .sequences = sequences});
//
// For GPUs with Hopper's bulk copies and 132 multiprocessors (with more, project() would cut
// matrices otherwise), Q4_K and Q6_K, SiLU, attention of all tokens in f16 pages with heads of 128
// or 256, up to eight of which share a KV head, and rows that fill the blocks and that a block's
// memory has room for (dense_run_plan.h): 5,120 columns, 17,408 of the FFN, 48 delta heads of 128.
// All else goes layer by layer.
//
// Plans hold addresses: weights, states, page tables and turns have to stay. Blocks wait for each
// other, so all must be on the GPU at once, as run.h says; what may be written while a run is under
// way, and how it ends where a block waits for long, is said there too.
#pragma once

#include <span>
#include <vector>

#include "device/gpu/kernels/run.h"

namespace tessera::gpu {

// Whether the current device can, and launches are chained.
bool has_dense_runs(const Launch& launch);
// Whether a layer's shape and types are those of the kernel; the same of a model's layer whose
// types are not known yet.
bool fits_dense_run(const RunLayer& layer);
bool may_run_dense(const ModelSpec& spec, const LayerSpec& layer);

// Device memory for `layers` layers, and for what passes between blocks, of sequences of up to
// `context` tokens whose queries have so many columns in all: zeros at first, and again behind
// kMostRuns runs, as two of which one of these counts.
std::size_t dense_runs_bytes(int layers);
std::size_t dense_passed_bytes(std::int64_t context, std::int64_t query_columns);
inline constexpr int kMostDenseLayers = 2 * kMostRunLayers + 1;  // a run

// Writes dense_runs_bytes() to `host`; of each layer its place there, -1 where it does not fit.
std::vector<int> write_dense_runs(std::span<const RunLayer> layers, std::byte* host);

// A state is as many bytes to write as to read, and memory that reads weights takes writes badly:
// they cost twice the time of as many reads. So of most steps the states stay as they are, and a
// log says what to add to them: the keys, what they go to each column with, and the decay. A run
// makes the steps in the log again, which gives the same bits, ahead of its own, and writes the
// states when the log is full. The log is of one sequence: before another one's run, and before
// anything else reads states, they have to be settled.
//
//   run_dense(launch, {..., .log = log});                    // tokens of a sequence, one by one
//   settle_dense(launch, plans, places, log, sequence.slot);  // then others may read its states
inline constexpr int kMostLogged = 7;
std::size_t dense_log_bytes(int nets);  // of so many delta nets; zeros at first

struct DenseRunArgs {
  const std::byte* plans = nullptr;
  int places = 0;               // in them
  int first = 0, n_layers = 0;  // those in places first .. first + n_layers - 1
  float* hidden = nullptr;      // [n_embd], read and written
  std::byte* passed = nullptr;
  const Sequence* sequences = nullptr;  // the row's is the first
  float* log = nullptr;                 // null: states are written
};
// Writes the residual, the layers' states or the log, and pages. An invalid value: places that are
// not there, or no work.
GpuError run_dense(const Launch& launch, const DenseRunArgs& args);
// Makes the steps in the log again and writes the states of slot `slot`, whose steps they are; the
// log is empty then.
GpuError settle_dense(const Launch& launch, const std::byte* plans, int places, float* log,
                      int slot);

}  // namespace tessera::gpu
