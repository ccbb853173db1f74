// GpuExperts: routed experts of some layers on a GPU, without the layers. A worker process of the
// role `experts` runs it (experts/expert_holder.h).
//
//   TESSERA_ASSIGN(auto experts, make_gpu_experts("cuda", {.index = 1}, folder));
//   TESSERA_TRY(experts->load(model, layout));
//   TESSERA_TRY(experts->compute({.layer = 3, .n_rows = 2, .rows = rows, .pairs = pairs}, sums));
//
// Of the layout first_layer, end_layer, max_rows and experts count; a layer without homes has none
// here. Rows are what the experts read, normed; sums[r] is the sum over the row's pairs of weight *
// expert(row), in f32. A row's sum has the same bits whatever other rows are there, among up to
// eight. The weights meet activations as on a device with layers (docs/gpu.md).
//
// Ownership: it owns what it holds; the model is not read after load(). Threads: one at a time.
// Errors: what load() says of memory; after an error of compute() it is lost.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/device.h"

namespace tessera {

struct GpuExpertsJob {
  int layer = 0;
  int n_rows = 0;
  std::span<const float> rows;        // [n_rows][n_embd]
  std::span<const RoutedPair> pairs;  // of experts here; rows rising, at most n_used a row
};

class GpuExperts {
 public:
  virtual ~GpuExperts() = default;
  virtual Status load(const Model& model, const ShardLayout& layout) = 0;
  virtual Status compute(const GpuExpertsJob& job, std::span<float> sums) = 0;  // [n_rows][n_embd]
};

}  // namespace tessera
