// Launch functions for experts that are not on the GPU: asked for from the host in the middle of a
// step, or copied over the link ahead of their layer. The terms are those of kernels.h.
//
//   ffn_post(launch, ffn, away);   // the choice, and what the host needs of it
//   ffn_branches(launch, ffn);     // what is here, meanwhile
//   ffn_finish_answered(launch, ffn, away);
#pragma once

#include "device/gpu/kernels/kernels.h"

namespace tessera::gpu {

// Pinned host memory by which a layer of few rows asks the host for the pairs that it lacks, while
// the step runs. Every row posts its choice and its residual; one that lacks experts then waits for
// their sum. `step` numbers the step, so that nothing has to be cleared between two.
struct AwayArgs {
  const std::int32_t* step = nullptr;  // in device memory
  // Written here, `posted` last.
  std::int32_t* ids = nullptr;     // [rows][n_used]
  float* weights = nullptr;        // [rows][n_used]
  float* x = nullptr;              // [rows][n_embd]
  std::int32_t* posted = nullptr;  // [rows]: the step
  // Written by the host, `answered` last.
  const float* sums = nullptr;             // [rows][n_embd], with the weights
  const std::int32_t* answered = nullptr;  // [rows]: the step
  // The step that nobody is waited for in any more: by the host, or by a row that has waited for
  // `most_clocks` of the device. Sums that did not come are zeros.
  std::int32_t* given_up = nullptr;
  std::int64_t most_clocks = 0;
  // Of n experts that a row lacks and moe.linked has, reads[n] are not the host's: the kernels read
  // them over the link meanwhile. They are those that were foreseen for the row, and then those of
  // the lowest numbers, so that rows tend to agree.
  std::uint8_t reads[kMaxUsed + 1] = {};
  // [rows][n_used] in device memory: what moe.ids were when the rows' experts were foreseen, of
  // which bring_experts() brings some; null: they were not.
  const std::int32_t* foreseen = nullptr;
};
// As ffn_route(), and posts; and as ffn_finish(), with the sums. Between them ffn_branches(). No
// norm may stand behind the experts. Where moe.ids, moe.weights, or away's weights or x are null,
// they are not written.
GpuError ffn_post(const Launch& launch, const FfnArgs& args, const AwayArgs& away);
GpuError ffn_finish_answered(const Launch& launch, const FfnArgs& args, const AwayArgs& away);

// Copies experts over the link, ahead of their layer and beside other kernels: the first
// kBroughtPlaces different ones that `ids` says are read, place by place.
inline constexpr int kBroughtPlaces = 4;
struct BringArgs {
  const std::int32_t* ids = nullptr;  // AwayArgs::foreseen
  int rows = 0, n_used = 0, n_expert = 0;
  const std::byte* const* linked = nullptr;  // MoeArgs's
  std::int64_t bytes = 0;                    // of an expert
  std::byte* to = nullptr;                   // MoeArgs::brought
};
GpuError bring_experts(const Launch& launch, const BringArgs& args);

// A table of moe.table's kind: place i of `base` holds expert experts[i], all others are null.
inline constexpr int kMostPlaces = 32;
struct TableArgs {
  const std::byte** table = nullptr;  // [n_expert]
  int n_expert = 0;
  const std::byte* base = nullptr;
  std::int64_t stride = 0;  // bytes
  int n = 0;
  std::int32_t experts[kMostPlaces] = {};
};
GpuError set_expert_table(const Launch& launch, const TableArgs& args);

}  // namespace tessera::gpu
