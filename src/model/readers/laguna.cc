// laguna: full and windowed attention with a softplus output gate; sigmoid-routed experts.
#include <algorithm>
#include <cmath>

#include "model/readers/parts.h"
#include "model/readers/readers.h"

namespace tessera {
namespace {

constexpr int kDefaultPeriod = 4;
constexpr float kDefaultBase = 500000.0f;
constexpr float kDefaultSwaBase = 10000.0f;
constexpr int kGatingSoftmax = 1;
constexpr int kGatingSigmoid = 2;

// Keys of other converters that would change the forward pass: accepted only where they say what
// this reader does anyway.
Status refuse_variants(const Keys& keys) {
  const auto refuse = [&](std::string_view name) {
    return Error::make(ErrorCode::unsupported, "{} has a value that is not supported",
                       keys.full(name));
  };
  TESSERA_ASSIGN(bool sinks, keys.boolean_or({"attention.sink_enabled"}, false));
  if (sinks) return refuse("attention.sink_enabled");
  TESSERA_ASSIGN(bool qk_norm, keys.boolean_or({"attention.qk_norm"}, true));
  if (!qk_norm) return refuse("attention.qk_norm");
  TESSERA_ASSIGN(int step, keys.integer_or({"decoder_sparse_step"}, 1, {0, kMaxBlocks}));
  if (step > 1) return refuse("decoder_sparse_step");
  TESSERA_ASSIGN(auto type,
                 keys.metadata().get_string_or(keys.full("rope.swa.scaling.type"), "none"));
  TESSERA_ASSIGN(float factor, keys.positive_or({"rope.swa.scaling.factor"}, 1.0f));
  if (type != "none" && type != "default" && !type.empty() && factor != 1) {
    return refuse("rope.swa.scaling.type");
  }
  return {};
}

// Which layers see only a window. Without a pattern one layer of four is full, the first of them.
Result<std::vector<bool>> read_windowed(const Keys& keys, int n_layer, int window) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  constexpr const char* kTypes = "attention.layer_types";
  std::vector<bool> windowed(static_cast<std::size_t>(n_layer), false);
  if (window == 0) return windowed;
  const gguf::Value* pattern = keys.metadata().find(keys.full(kPattern));
  const char* array = pattern != nullptr ? kPattern : keys.has(kTypes) ? kTypes : nullptr;
  if (array != nullptr && keys.metadata().find(keys.full(array))->is_array()) {
    TESSERA_ASSIGN(windowed, keys.metadata().get_bool_array(keys.full(array)));
    if (windowed.size() != static_cast<std::size_t>(n_layer)) {
      return keys.invalid(array, "{} entries for {} layers", windowed.size(), n_layer);
    }
    return windowed;
  }
  TESSERA_ASSIGN(int period, keys.integer_or({kPattern}, kDefaultPeriod, {1, kMaxBlocks}));
  for (int il = 0; il < n_layer; ++il) windowed[static_cast<std::size_t>(il)] = il % period != 0;
  return windowed;
}

Result<int> read_full_n_rot(const Keys& keys, int head_dim) {
  TESSERA_ASSIGN(float part, keys.positive_or({"rope.partial_rotary_factor"}, 0.5f));
  const int fallback = static_cast<int>(static_cast<float>(head_dim) * std::min(part, 1.0f));
  return read_n_rot(keys, {"rope.dimension_count"}, {.dim = head_dim, .fallback = fallback});
}

struct Attentions {
  AttentionSpec full;
  AttentionSpec windowed;
};

// All but head counts and gate.
Result<Attentions> read_attention(const Keys& keys, int context_length, int window) {
  Attentions both;
  AttentionSpec& full = both.full;
  TESSERA_ASSIGN(full.head_dim_k, keys.integer({"attention.key_length"}, {2, kMaxHeadDim}));
  TESSERA_ASSIGN(full.head_dim_v, keys.integer({"attention.value_length"}, {2, kMaxHeadDim}));
  full.scale = 1 / std::sqrt(static_cast<float>(full.head_dim_k));
  full.qk_norm = true;
  both.windowed = full;
  both.windowed.window = window;

  TESSERA_ASSIGN(int n_rot, read_full_n_rot(keys, full.head_dim_k));
  TESSERA_ASSIGN(float base, keys.positive_or({"rope.freq_base"}, kDefaultBase));
  TESSERA_ASSIGN(full.rope, scaled_rope(keys, n_rot, base, context_length, {.beta_fast = 64.0f}));

  TESSERA_ASSIGN(int n_rot_swa,
                 read_n_rot(keys, {"rope.dimension_count_swa", "rope.swa.dimension_count"},
                            {.dim = full.head_dim_k}));
  TESSERA_ASSIGN(float base_swa,
                 keys.positive_or({"rope.freq_base_swa", "rope.swa.freq_base"}, kDefaultSwaBase));
  both.windowed.rope = plain_rope(n_rot_swa, base_swa);
  return both;
}

// The width of the gate tensor says which gate it is; any other width is left for the resolver to
// complain about.
OutputGate gate_of(const LayerTensors& tensors, const AttentionSpec& spec) {
  const gguf::TensorInfo* gate = tensors.find("attn_gate.weight");
  if (gate == nullptr) gate = tensors.find("attn_g.weight");
  const std::int64_t elements = std::int64_t{spec.n_head} * spec.head_dim_v;
  return gate != nullptr && gate->ne[1] == elements ? OutputGate::softplus_per_element
                                                    : OutputGate::softplus_per_head;
}

Result<MoeSpec> read_moe(const Keys& keys) {
  MoeSpec moe;
  TESSERA_ASSIGN(moe.n_expert, keys.integer({"expert_count"}, {1, kMaxExperts}));
  TESSERA_ASSIGN(moe.n_used, keys.integer({"expert_used_count"}, {1, kMaxExperts}));
  TESSERA_ASSIGN(moe.n_ff, keys.integer({"expert_feed_forward_length"}, {1, kMaxWidth}));
  TESSERA_TRY(check_moe(keys, moe));
  TESSERA_ASSIGN(int gating, keys.integer_or({"expert_gating_func"}, 0, {0, kGatingSigmoid}));
  moe.router.gating = gating == kGatingSoftmax ? Gating::softmax : Gating::sigmoid;
  moe.router.selection_bias = true;
  TESSERA_ASSIGN(moe.router.normalize, keys.boolean_or({"expert_weights_norm"}, true));
  TESSERA_ASSIGN(moe.router.weight_scale, keys.positive_or({"expert_weights_scale"}, 1.0f));
  TESSERA_ASSIGN(moe.router.logit_softcap,
                 keys.non_negative_or({"router_logit_softcapping"}, 0.0f));
  return moe;
}

// 0 when there is no shared expert.
Result<int> read_shared_width(const Keys& keys, const MoeSpec& moe) {
  TESSERA_ASSIGN(int count, keys.integer_or({"expert_shared_count"}, 1, {0, kMaxExperts}));
  if (count == 0) return 0;
  TESSERA_ASSIGN(int width, keys.integer_or({"expert_shared_feed_forward_length"},
                                            std::min(count * moe.n_ff, kMaxWidth), {1, kMaxWidth}));
  return width;
}

// The number of leading dense layers; a list of dense layers must be such a prefix.
Result<int> read_leading_dense(const Keys& keys, int n_layer) {
  constexpr const char* kCount = "leading_dense_block_count";
  constexpr const char* kList = "dense_layers";
  if (keys.has(kCount) || !keys.has(kList)) return keys.integer_or({kCount}, 0, {0, n_layer});
  TESSERA_ASSIGN(auto list, keys.metadata().get_int_array(keys.full(kList)));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] != static_cast<std::int64_t>(i) || list[i] >= n_layer) {
      return keys.invalid(kList, "only a leading run of dense layers (0, 1, ...) is supported");
    }
  }
  return static_cast<int>(list.size());
}

void expect_moe(LayerTensors& tensors, const LayerSpec& layer, std::int64_t n_embd) {
  const std::int64_t n_expert = layer.moe->n_expert;
  tensors.matrix(TensorRole::router, "ffn_gate_inp.weight", n_expert, n_embd);
  tensors.vector(TensorRole::router_bias, "exp_probs_b.bias", n_expert,
                 {"exp_probs_b", "exp_probs_b.weight"});
  tensors.experts(*layer.moe, n_embd);
  if (layer.dense) tensors.dense(*layer.dense, n_embd, "_shexp");
}

Status read_layers(const gguf::File& file, const Keys& keys, int n_layer, FamilyModel& model) {
  TESSERA_ASSIGN(int window, keys.integer_or({"attention.sliding_window"}, 0, {0, kMaxContext}));
  TESSERA_ASSIGN(auto windowed, read_windowed(keys, n_layer, window));
  TESSERA_ASSIGN(auto heads, keys.per_layer({"attention.head_count"}, n_layer, {1, kMaxHeads}));
  TESSERA_ASSIGN(auto kv_heads,
                 keys.per_layer({"attention.head_count_kv"}, n_layer, {1, kMaxHeads}));
  TESSERA_ASSIGN(Attentions kinds, read_attention(keys, model.spec.context_length, window));
  TESSERA_ASSIGN(int n_dense, read_leading_dense(keys, n_layer));
  int n_ff = 0;
  if (n_dense > 0) {
    TESSERA_ASSIGN(n_ff, keys.integer({"feed_forward_length"}, {1, kMaxWidth}));
  }
  TESSERA_ASSIGN(MoeSpec moe, read_moe(keys));
  TESSERA_ASSIGN(int n_shared, read_shared_width(keys, moe));

  const std::int64_t n_embd = model.spec.n_embd;
  for (int il = 0; il < n_layer; ++il) {
    const auto at = static_cast<std::size_t>(il);
    LayerTensors tensors(model, file, il);
    AttentionSpec attention = windowed[at] ? kinds.windowed : kinds.full;
    attention.n_head = heads[at];
    attention.n_kv_head = kv_heads[at];
    attention.gate = gate_of(tensors, attention);
    TESSERA_TRY(check_attention(keys, attention, il));
    const std::int64_t gate_rows =
        std::int64_t{attention.n_head} *
        (attention.gate == OutputGate::softplus_per_element ? attention.head_dim_v : 1);

    LayerSpec& layer = model.spec.layers.emplace_back();
    tensors.vector(TensorRole::mixer_norm, "attn_norm.weight", n_embd);
    tensors.attention(attention, std::int64_t{attention.n_head} * attention.head_dim_k, n_embd);
    tensors.matrix(TensorRole::attn_gate, "attn_gate.weight", gate_rows, n_embd, {"attn_g.weight"});
    tensors.vector(TensorRole::ffn_norm, "ffn_norm.weight", n_embd);
    layer.mixer = std::move(attention);
    if (il < n_dense) {
      layer.dense = DenseFfnSpec{.n_ff = n_ff};
      tensors.dense(*layer.dense, n_embd, "");
    } else {
      layer.moe = moe;
      if (n_shared > 0) layer.dense = DenseFfnSpec{.n_ff = n_shared};
      expect_moe(tensors, layer, n_embd);
    }
  }
  return {};
}

}  // namespace

Result<FamilyModel> read_laguna(const gguf::File& file) {
  FamilyModel model;
  const Keys keys(file.metadata(), "laguna");
  TESSERA_TRY(refuse_variants(keys));
  TESSERA_TRY(read_globals(file, keys, model));
  TESSERA_ASSIGN(int n_layer, keys.integer({"block_count"}, {1, kMaxBlocks}));
  TESSERA_TRY(read_layers(file, keys, n_layer, model));
  return model;
}

}  // namespace tessera
