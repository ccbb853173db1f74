#include "model/spec.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace tessera {

std::vector<KvGroup> kv_groups(const ModelSpec& spec) {
  std::vector<KvGroup> groups;
  for (int layer = 0; layer < spec.n_layer(); ++layer) {
    const AttentionSpec* attention = spec.layers[static_cast<std::size_t>(layer)].attention();
    if (attention == nullptr || attention->kv_source >= 0) continue;
    KvGroup* group = nullptr;
    for (KvGroup& candidate : groups) {
      if (candidate.window == attention->window) group = &candidate;
    }
    if (group == nullptr) group = &groups.emplace_back(KvGroup{attention->window, {}});
    group->layers.push_back(layer);
  }
  return groups;
}

int most_experts_used(const ModelSpec& spec) {
  int used = 1;
  for (const LayerSpec& layer : spec.layers)
    if (layer.moe) used = std::max(used, layer.moe->n_used);
  return used;
}

const char* role_name(TensorRole role) {
  static constexpr const char* kNames[] = {
      "token_embd",      "output_norm",
      "output",          "mixer_norm",
      "mixer_post_norm", "attn_q",
      "attn_k",          "attn_v",
      "attn_output",     "attn_q_norm",
      "attn_k_norm",     "attn_gate",
      "gdn_qkv",         "gdn_gate",
      "gdn_beta",        "gdn_alpha",
      "gdn_conv",        "gdn_dt_bias",
      "gdn_a",           "gdn_norm",
      "gdn_out",         "ffn_norm",
      "dense_gate",      "dense_up",
      "dense_down",      "dense_scalar_gate",
      "dense_post_norm", "router",
      "router_scale",    "router_bias",
      "moe_norm",        "moe_gate",
      "moe_up",          "moe_down",
      "expert_scale",    "moe_post_norm",
      "ffn_post_norm",   "layer_scale",
  };
  static_assert(std::size(kNames) == static_cast<std::size_t>(TensorRole::count));
  CHECK(role < TensorRole::count, "role {}", static_cast<int>(role));
  return kNames[static_cast<std::size_t>(role)];
}

}  // namespace tessera
