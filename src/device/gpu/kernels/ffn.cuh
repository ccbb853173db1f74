// What the FFN's kernels share. The branches' hidden activations act(gate x) * up x stand in the
// workspace as f32, [rows][h_stride]: n_used routed slots of `expert_pad` columns each, then the
// dense branch's.
#pragma once

#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/select.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

struct FfnScratch {
  float* h = nullptr;
  float* dense_gate = nullptr;  // [rows] logits of the dense branch's scalar gate
  // Rounded rows (rounded_row_bytes), in the tile kernels' place: the normed input, and h.
  std::byte* x_rounded = nullptr;
  std::byte* h_rounded = nullptr;
};
FfnScratch ffn_scratch(const FfnArgs& args, void* workspace);
// What ffn_together() reads where project_and_route() (run.h) has written it.
FfnScratch routed_scratch(const FfnArgs& args);

inline float router_factor(const FfnArgs& args) {
  return args.moe.router.own_input ? 1.0f / sqrtf(static_cast<float>(args.n_embd)) : 1.0f;
}
inline Input ffn_input(const FfnArgs& args, const float* weight) {
  return {.kind = weight != nullptr ? InputKind::rms_norm : InputKind::plain,
          .x = args.hidden,
          .stride = args.n_embd,
          .cols = args.n_embd,
          .weight = weight,
          .eps = args.eps};
}
inline const float* expert_norm(const FfnArgs& args) {
  return args.moe.norm != nullptr ? args.moe.norm : args.norm;
}

// Where the kernels find an expert by its id of moe.ids; null: nowhere. `table`: moe.table, or a
// copy of it.
__device__ __forceinline__ const std::byte* expert_at(const MoeArgs& moe,
                                                      const std::byte* const* table,
                                                      std::int32_t id) {
  const std::int32_t n = moe.n_expert;
  if (id < n) return table[id];
  return id < 2 * n ? moe.linked[id - n] : moe.brought + (id / n - 2) * moe.shape.bytes;
}

// Router logits, and the dense branch's gate logit where it reads the same input.
GpuError ffn_logits(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch);
// h of the routed slots (and of the dense branch where `with_dense`). `select`: chooses the experts
// from the logits and writes them, instead of reading them.
GpuError expert_hidden(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch,
                       bool with_dense, bool select);
GpuError dense_hidden(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch);
// Of a row's hidden activations so many super-blocks are left rounded, in h_rounded, for
// dense_output().
int dense_supers(const Launch& launch, const FfnArgs& args);
// hidden += the weighted sum of all branches, in one kernel; no post norms.
GpuError fused_output(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch);
// Both as one kernel (ffn_together.cu), where it goes_together() (run.h). `next`: null, or the
// projections of the layer behind (leads_to()).
GpuError ffn_together(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch,
                      const ProjectArgs* next);
// The dense branch's product into `out` (added to it where `add`).
GpuError dense_output(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch,
                      float* out, bool add);
// pair_out of the resident experts.
GpuError pair_output(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch);

}  // namespace tessera::gpu
