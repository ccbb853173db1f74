// gemma4: windowed and full attention of two head widths, sandwich norms, optionally a MoE branch
// beside the dense one.
#include <algorithm>
#include <cmath>

#include "model/readers/parts.h"
#include "model/readers/readers.h"

namespace tessera {
namespace {

constexpr const char* kPattern = "attention.sliding_window_pattern";

Status refuse_variants(const Keys& keys) {
  TESSERA_ASSIGN(int per_layer,
                 keys.integer_or({"embedding_length_per_layer_input"}, 0, {0, kMaxWidth}));
  if (per_layer > 0) {
    return Error::make(ErrorCode::unsupported,
                       "{} is {}: models with per-layer embeddings are not supported",
                       keys.full("embedding_length_per_layer_input"), per_layer);
  }
  TESSERA_ASSIGN(int gating, keys.integer_or({"expert_gating_func"}, 1, {0, 1 << 8}));
  if (gating > 1) {
    return Error::make(ErrorCode::unsupported, "{} is {}; only 1 (softmax) is supported",
                       keys.full("expert_gating_func"), gating);
  }
  return {};
}

// true: windowed. A scalar is a period whose last layer is full.
Result<std::vector<bool>> read_windowed(const Keys& keys, int n_layer) {
  const gguf::Value* pattern = keys.metadata().find(keys.full(kPattern));
  std::vector<bool> windowed;
  if (pattern != nullptr && pattern->is_array()) {
    TESSERA_ASSIGN(windowed, keys.metadata().get_bool_array(keys.full(kPattern)));
    if (windowed.size() != static_cast<std::size_t>(n_layer)) {
      return keys.invalid(kPattern, "{} entries for {} layers", windowed.size(), n_layer);
    }
    return windowed;
  }
  TESSERA_ASSIGN(int period, keys.integer({kPattern}, {1, kMaxBlocks}));
  for (int il = 0; il < n_layer; ++il) windowed.push_back(il % period != period - 1);
  return windowed;
}

// The frequency factors of the full layers: 1 for a pair that turns, huge for one that does not.
// Without a table a quarter of the head turns.
Result<std::vector<float>> read_rope_factors(const gguf::File& file, int n_pair) {
  constexpr float kStill = 1e30f;
  std::vector<float> factors(static_cast<std::size_t>(n_pair), 1.0f);
  const gguf::TensorInfo* tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) {
    std::fill(factors.begin() + n_pair / 4, factors.end(), kStill);
    return factors;
  }
  if (tensor->ne[0] != n_pair || tensor->rows() != 1) {
    return Error::make(ErrorCode::invalid, "rope_freqs.weight has {} x {} elements instead of {}",
                       tensor->ne[0], tensor->rows(), n_pair);
  }
  dequantize_row(tensor->type, tensor->data, n_pair, factors.data());
  for (float factor : factors) {
    if (!(factor > 0)) {
      return Error::make(ErrorCode::invalid, "rope_freqs.weight holds {}; factors are positive",
                         factor);
    }
  }
  return factors;
}

RopeSpec divided(RopeSpec rope, const std::vector<float>& factors) {
  constexpr float kNeverTurns = 1e20f;
  for (std::size_t i = 0; i < rope.inv_freq.size(); ++i) {
    rope.inv_freq[i] = factors[i] < kNeverTurns ? rope.inv_freq[i] / factors[i] : 0.0f;
  }
  return rope;
}

struct Attentions {
  AttentionSpec full;
  AttentionSpec windowed;
};

// All but head counts.
Result<Attentions> read_attention(const gguf::File& file, const Keys& keys, bool any_windowed) {
  Attentions both;
  AttentionSpec& full = both.full;
  full.scale = 1.0f;
  full.qk_norm = true;
  full.v_norm = true;
  AttentionSpec& windowed = both.windowed = full;
  TESSERA_ASSIGN(full.head_dim_k, keys.integer({"attention.key_length"}, {2, kMaxHeadDim}));
  TESSERA_ASSIGN(full.head_dim_v, keys.integer({"attention.value_length"}, {2, kMaxHeadDim}));
  if (full.head_dim_k % 2 != 0) return keys.invalid("attention.key_length", "it must be even");
  // The table of factors, not a shorter rotation, says which pairs of a full layer turn.
  TESSERA_TRY(read_n_rot(keys, {"rope.dimension_count"}, {.dim = full.head_dim_k}));
  TESSERA_ASSIGN(float base, keys.positive({"rope.freq_base"}));
  TESSERA_ASSIGN(auto factors, read_rope_factors(file, full.head_dim_k / 2));
  full.rope = divided(plain_rope(full.head_dim_k, base), factors);
  if (!any_windowed) return both;

  TESSERA_ASSIGN(windowed.window, keys.integer({"attention.sliding_window"}, {1, kMaxContext}));
  TESSERA_ASSIGN(windowed.head_dim_k,
                 keys.integer_or({"attention.key_length_swa"}, full.head_dim_k, {2, kMaxHeadDim}));
  TESSERA_ASSIGN(windowed.head_dim_v, keys.integer_or({"attention.value_length_swa"},
                                                      full.head_dim_v, {2, kMaxHeadDim}));
  if (windowed.head_dim_k % 2 != 0) {
    return keys.invalid("attention.key_length_swa", "it must be even");
  }
  TESSERA_ASSIGN(int n_rot,
                 read_n_rot(keys, {"rope.dimension_count_swa"}, {.dim = windowed.head_dim_k}));
  TESSERA_ASSIGN(float base_swa, keys.positive_or({"rope.freq_base_swa"}, 10000.0f));
  windowed.rope = plain_rope(n_rot, base_swa);
  return both;
}

Result<std::optional<MoeSpec>> read_moe(const Keys& keys) {
  std::optional<MoeSpec> none;
  if (!keys.has("expert_count")) return none;
  TESSERA_ASSIGN(int n_expert, keys.integer({"expert_count"}, {0, kMaxExperts}));
  if (n_expert == 0) return none;
  MoeSpec moe;
  moe.n_expert = n_expert;
  TESSERA_ASSIGN(moe.n_used, keys.integer({"expert_used_count"}, {1, kMaxExperts}));
  TESSERA_ASSIGN(moe.n_ff, keys.integer({"expert_feed_forward_length"}, {1, kMaxWidth}));
  TESSERA_TRY(check_moe(keys, moe));
  moe.activation = Activation::gelu_tanh;
  moe.router.own_input = true;
  moe.expert_scale = true;
  moe.own_norm = true;
  moe.post_norm = true;
  return std::optional(moe);
}

// The layer whose KV layer `il` attends over: the last one before `first_shared` of the same kind.
Result<int> shared_source(const Keys& keys, const std::vector<bool>& windowed, int first_shared,
                          int il) {
  for (int source = first_shared - 1; source >= 0; --source) {
    if (windowed[static_cast<std::size_t>(source)] == windowed[static_cast<std::size_t>(il)]) {
      return source;
    }
  }
  return keys.invalid("attention.shared_kv_layers", "no layer before {} is of the kind of layer {}",
                      first_shared, il);
}

void expect_ffn(LayerTensors& tensors, LayerSpec& layer, std::int64_t n_embd) {
  tensors.vector(TensorRole::ffn_norm, "ffn_norm.weight", n_embd);
  tensors.dense(*layer.dense, n_embd, "");
  tensors.vector(TensorRole::ffn_post_norm, "post_ffw_norm.weight", n_embd);
  layer.layer_scale = tensors.find("layer_output_scale.weight") != nullptr;
  if (layer.layer_scale) tensors.vector(TensorRole::layer_scale, "layer_output_scale.weight", 1);
  if (!layer.moe) return;
  tensors.vector(TensorRole::dense_post_norm, "post_ffw_norm_1.weight", n_embd);
  tensors.matrix(TensorRole::router, "ffn_gate_inp.weight", layer.moe->n_expert, n_embd);
  tensors.vector(TensorRole::router_scale, "ffn_gate_inp.scale", n_embd);
  tensors.vector(TensorRole::moe_norm, "pre_ffw_norm_2.weight", n_embd);
  tensors.experts(*layer.moe, n_embd);
  tensors.vector(TensorRole::expert_scale, "ffn_down_exps.scale", layer.moe->n_expert);
  tensors.vector(TensorRole::moe_post_norm, "post_ffw_norm_2.weight", n_embd);
}

Status read_layers(const gguf::File& file, const Keys& keys, int n_layer, FamilyModel& model) {
  TESSERA_ASSIGN(auto windowed, read_windowed(keys, n_layer));
  const bool any_windowed = std::ranges::find(windowed, true) != windowed.end();
  TESSERA_ASSIGN(Attentions kinds, read_attention(file, keys, any_windowed));
  TESSERA_ASSIGN(auto heads, keys.per_layer({"attention.head_count"}, n_layer, {1, kMaxHeads}));
  TESSERA_ASSIGN(auto kv_heads,
                 keys.per_layer({"attention.head_count_kv"}, n_layer, {1, kMaxHeads}));
  TESSERA_ASSIGN(auto widths, keys.per_layer({"feed_forward_length"}, n_layer, {1, kMaxWidth}));
  TESSERA_ASSIGN(int n_shared,
                 keys.integer_or({"attention.shared_kv_layers"}, 0, {0, n_layer - 1}));
  TESSERA_ASSIGN(std::optional<MoeSpec> moe, read_moe(keys));

  const std::int64_t n_embd = model.spec.n_embd;
  for (int il = 0; il < n_layer; ++il) {
    const auto at = static_cast<std::size_t>(il);
    LayerTensors tensors(model, file, il);
    AttentionSpec attention = windowed[at] ? kinds.windowed : kinds.full;
    attention.n_head = heads[at];
    attention.n_kv_head = kv_heads[at];
    if (il >= n_layer - n_shared) {
      TESSERA_ASSIGN(attention.kv_source, shared_source(keys, windowed, n_layer - n_shared, il));
      attention.n_kv_head = kv_heads[static_cast<std::size_t>(attention.kv_source)];
    } else {
      attention.value_is_key =
          tensors.find("attn_v.weight") == nullptr && tensors.find("attn_qkv.weight") == nullptr;
    }
    if (attention.value_is_key && attention.head_dim_k != attention.head_dim_v) {
      return keys.invalid("attention.value_length", "layer {} has no attn_v, so it must be {}", il,
                          attention.head_dim_k);
    }
    TESSERA_TRY(check_attention(keys, attention, il));

    LayerSpec& layer = model.spec.layers.emplace_back();
    layer.mixer_post_norm = true;
    layer.ffn_post_norm = true;
    layer.dense = DenseFfnSpec{
        .n_ff = widths[at], .activation = Activation::gelu_tanh, .post_norm = moe.has_value()};
    layer.moe = moe;
    tensors.vector(TensorRole::mixer_norm, "attn_norm.weight", n_embd);
    tensors.attention(attention, std::int64_t{attention.n_head} * attention.head_dim_k, n_embd);
    tensors.vector(TensorRole::mixer_post_norm, "post_attention_norm.weight", n_embd);
    layer.mixer = std::move(attention);
    expect_ffn(tensors, layer, n_embd);
  }
  return {};
}

}  // namespace

Result<FamilyModel> read_gemma4(const gguf::File& file) {
  FamilyModel model;
  const Keys keys(file.metadata(), "gemma4");
  TESSERA_TRY(refuse_variants(keys));
  TESSERA_TRY(read_globals(file, keys, model));
  TESSERA_ASSIGN(int n_layer, keys.integer({"block_count"}, {1, kMaxBlocks}));
  model.spec.embedding_scale = std::sqrt(static_cast<float>(model.spec.n_embd));
  TESSERA_ASSIGN(model.spec.logit_softcap, keys.non_negative_or({"final_logit_softcapping"}, 0.0f));
  TESSERA_TRY(read_layers(file, keys, n_layer, model));
  return model;
}

}  // namespace tessera
