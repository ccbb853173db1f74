// Whether a model routes its tokens to experts in any layer.
#pragma once

#include <algorithm>

#include "model/spec.h"

namespace tessera {

inline bool has_experts(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& layer) { return layer.moe.has_value(); });
}

}  // namespace tessera
