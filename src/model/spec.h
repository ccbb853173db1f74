// ModelSpec: everything the engine knows about a model, as data.
//
// A family reader (readers.h) turns GGUF metadata into one of these. Nothing behind it knows a
// family's name: the forward pass, the planner, the KV layout and every device read only the fields
// below. A variant of the field's transformer is a field here, never a branch elsewhere.
//
// Conventions. Sizes are element counts. A weight of `rows` x `cols` computes y[r] = sum W[r][c]
// x[c]. Query head h uses KV head h / (n_head / n_kv_head). rms(x) = x / sqrt(mean(x^2) +
// norm_eps).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

using TokenId = std::int32_t;

enum class Activation { silu, gelu_tanh };

// Rotary embedding over the first n_rot dimensions of a head: pair i is (i, i + n_rot/2) and turns
// by position * inv_freq[i]; cos and sin are multiplied by `magnitude` (YaRN's m). Interpolation
// and frequency factors are already inside inv_freq; a pair that must not turn has 0.
struct RopeSpec {
  int n_rot = 0;
  std::vector<float> inv_freq;  // n_rot / 2
  float magnitude = 1.0f;
};

// What multiplies the attention output before the output projection.
enum class OutputGate {
  none,
  sigmoid_in_query,      // attn_q holds, per head, head_dim query rows and then head_dim gate rows
  softplus_per_head,     // attn_gate: one logit a head
  softplus_per_element,  // attn_gate: one logit an output element
};

struct AttentionSpec {
  int n_head = 0;
  int n_kv_head = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  float scale = 1.0f;    // multiplies q.k
  float softcap = 0.0f;  // c * tanh(score / c) when > 0
  int window = 0;        // key p is visible to query t iff p <= t and p > t - window; 0 = all
  RopeSpec rope;
  bool qk_norm = false;       // RMS norm with weights over each q and k head, before the rotation
  bool v_norm = false;        // weightless RMS norm over each v head
  bool value_is_key = false;  // no attn_v: v is the raw k projection, before norm and rotation
  OutputGate gate = OutputGate::none;
  int kv_source = -1;  // >= 0: computes no k and v, attends over that layer's KV
};

// Gated DeltaNet (Qwen3.5): causal depthwise convolution + SiLU over [q | k | v], l2-normalised q
// and k, delta-rule state of dim_k x dim_v per value head, gated RMS norm.
struct GatedDeltaSpec {
  int n_key_head = 0;
  int n_value_head = 0;
  int dim_k = 0;
  int dim_v = 0;
  int conv_width = 0;
  bool grouped_values = false;  // value head h reads key head h / r instead of h % n_key_head

  int key_width() const { return n_key_head * dim_k; }
  int value_width() const { return n_value_head * dim_v; }
  int conv_channels() const { return 2 * key_width() + value_width(); }
};

// down(act(gate x) * up x) over the FFN norm of the residual. Also a model's shared expert.
struct DenseFfnSpec {
  int n_ff = 0;
  Activation activation = Activation::silu;
  bool scalar_gate = false;  // output times sigmoid(dense_scalar_gate . x): one number a row
  bool post_norm = false;    // own RMS norm of the branch's output
};

enum class Gating { softmax, sigmoid };

struct RouterSpec {
  Gating gating = Gating::softmax;
  bool selection_bias = false;  // added for the choice of experts only
  bool normalize = true;        // selected weights sum to 1 ...
  float weight_scale = 1.0f;    // ... and are then multiplied by this
  float logit_softcap = 0.0f;
  bool own_input = false;  // reads rms(residual) * router_scale / sqrt(n_embd) instead
};

struct MoeSpec {
  int n_expert = 0;
  int n_used = 0;
  int n_ff = 0;
  Activation activation = Activation::silu;
  RouterSpec router;
  bool expert_scale = false;  // the weight of expert e is multiplied by expert_scale[e]
  bool own_norm = false;      // moe_norm instead of the FFN norm
  bool post_norm = false;     // own RMS norm of the branch's output
};

// x += mixer_post_norm?(mixer(rms(x) mixer_norm))
// x += ffn_post_norm?(sum of branches); x *= layer_scale?
struct LayerSpec {
  std::variant<AttentionSpec, GatedDeltaSpec> mixer;
  bool mixer_post_norm = false;
  std::optional<DenseFfnSpec> dense;
  std::optional<MoeSpec> moe;
  bool ffn_post_norm = false;
  bool layer_scale = false;

  const AttentionSpec* attention() const { return std::get_if<AttentionSpec>(&mixer); }
  const GatedDeltaSpec* gated_delta() const { return std::get_if<GatedDeltaSpec>(&mixer); }
};

struct ModelSpec {
  std::string architecture;  // general.architecture, for people only
  std::string name;          // general.name, for people only
  int n_embd = 0;
  int n_vocab = 0;         // rows of the head
  int n_token = 0;         // tokens in the vocabulary; logits of ids >= n_token are never sampled
  int context_length = 0;  // the longest the model was made for
  float norm_eps = 1e-6f;
  float embedding_scale = 1.0f;
  float logit_softcap = 0.0f;
  bool tied_head = false;  // the head is the embedding table
  std::vector<TokenId> suppressed_tokens;
  std::vector<LayerSpec> layers;

  int n_layer() const { return static_cast<int>(layers.size()); }
};

// Attention layers that share a page table: the same visibility, hence the same pages in use.
struct KvGroup {
  int window = 0;           // 0: the whole sequence stays visible
  std::vector<int> layers;  // layers that store KV (kv_source < 0)
};
std::vector<KvGroup> kv_groups(const ModelSpec& spec);
// How many experts a token has in the layer that uses most of them; at least 1.
int most_experts_used(const ModelSpec& spec);

// What a tensor is to the forward pass. Layer tensors carry a layer index, the first three none.
enum class TensorRole : std::uint8_t {
  token_embd,
  output_norm,
  output,
  mixer_norm,
  mixer_post_norm,
  attn_q,
  attn_k,
  attn_v,
  attn_output,
  attn_q_norm,
  attn_k_norm,
  attn_gate,
  gdn_qkv,
  gdn_gate,
  gdn_beta,
  gdn_alpha,
  gdn_conv,
  gdn_dt_bias,
  gdn_a,
  gdn_norm,
  gdn_out,
  ffn_norm,
  dense_gate,
  dense_up,
  dense_down,
  dense_scalar_gate,
  dense_post_norm,
  router,
  router_scale,
  router_bias,
  moe_norm,
  moe_gate,
  moe_up,
  moe_down,
  expert_scale,
  moe_post_norm,
  ffn_post_norm,
  layer_scale,
  count,
};
const char* role_name(TensorRole role);

}  // namespace tessera
