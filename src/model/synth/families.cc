// The tensors of each family, in the order that the field's converter gives them where it matters
// to nobody else.
#include <cmath>

#include "model/synth/layout.h"

namespace tessera::synth {
namespace {

constexpr float kRouterStd = 2.5f;  // of router logits

float inverse_root(std::int64_t n) {
  return 1 / std::sqrt(static_cast<float>(n));
}

Status need(bool condition, std::string_view name, std::string_view rule) {
  if (condition) return {};
  return Error::make(ErrorCode::invalid, "{} {}", name, rule);
}

bool recurrent(const Knobs& knobs, int layer, int trunk) {
  if (layer >= trunk) return false;
  if (knobs.has("attention.recurrent_layers")) {
    return knobs.at("attention.recurrent_layers", layer) != 0;
  }
  return (layer + 1) % knobs.integer("full_attention_interval") != 0;
}

void add_gated_delta(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  const std::int64_t heads = knobs.integer("ssm.time_step_rank");
  const std::int64_t values = knobs.integer("ssm.inner_size");
  const std::int64_t channels =
      2 * knobs.integer("ssm.group_count") * knobs.integer("ssm.state_size") + values;
  builder.matrix("attn_qkv.weight", Use::sensitive, {n_embd, channels}, 1.0f);
  builder.matrix("attn_gate.weight", Use::plain, {n_embd, values}, 1.0f);
  builder.matrix("ssm_beta.weight", Use::plain, {n_embd, heads}, 1.0f);
  builder.matrix("ssm_alpha.weight", Use::plain, {n_embd, heads}, 1.0f);
  builder.vector("ssm_conv1d.weight", {knobs.integer("ssm.conv_kernel"), channels},
                 {Fill::Kind::normal, 0.5f, 0});
  builder.vector("ssm_dt.bias", {heads}, {Fill::Kind::normal, 1.0f, 0});
  builder.vector("ssm_a", {heads}, {Fill::Kind::negative_decay, 0.01f, 2.0f});
  builder.norm("ssm_norm.weight", values / heads);
  builder.matrix("ssm_out.weight", Use::plain, {values, n_embd}, builder.residual_gain());
}

void add_gated_attention(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t dim = knobs.integer("attention.key_length");
  const std::int64_t heads = knobs.integer("attention.head_count");
  const std::int64_t kv = knobs.integer("attention.head_count_kv") * dim;
  builder.attention({.q = 2 * heads * dim, .k = kv, .v = kv, .out = heads * dim});
  builder.qk_norms(dim, inverse_root(dim));
}

void add_qwen35_ffn(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  if (!knobs.has("expert_count")) return builder.dense("", knobs.integer("feed_forward_length"));
  const std::int64_t n_expert = knobs.integer("expert_count");
  builder.matrix("ffn_gate_inp.weight", Use::float32, {n_embd, n_expert}, kRouterStd);
  builder.experts({.n_expert = n_expert, .n_ff = knobs.integer("expert_feed_forward_length")});
  builder.matrix("ffn_gate_inp_shexp.weight", Use::float32, {n_embd}, 1.0f);
  builder.dense("_shexp", knobs.integer("expert_shared_feed_forward_length"));
}

Status check_qwen35(const Knobs& knobs, std::int64_t mtp) {
  const std::int64_t heads = knobs.integer("ssm.time_step_rank");
  TESSERA_TRY(need(heads > 0 && knobs.integer("ssm.inner_size") % heads == 0, "ssm.inner_size",
                   "must be a multiple of ssm.time_step_rank"));
  TESSERA_TRY(need(knobs.integer("full_attention_interval") > 0, "full_attention_interval",
                   "must be positive"));
  return need(mtp < knobs.integer("block_count"), "nextn_predict_layers",
              "must be less than block_count, which includes it");
}

}  // namespace

Status build_qwen35(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t mtp = knobs.integer_or("nextn_predict_layers", 0);
  TESSERA_TRY(check_qwen35(knobs, mtp));
  const int trunk = builder.n_layer() - static_cast<int>(mtp);
  const std::int64_t n_embd = builder.n_embd();
  builder.globals(1.0f);
  for (int layer = 0; layer < builder.n_layer(); ++layer) {
    builder.begin_layer(layer);
    builder.norm("attn_norm.weight", n_embd);
    if (recurrent(knobs, layer, trunk)) {
      add_gated_delta(builder);
    } else {
      add_gated_attention(builder);
    }
    builder.norm("post_attention_norm.weight", n_embd);
    add_qwen35_ffn(builder);
    if (layer < trunk) continue;
    builder.matrix("nextn.eh_proj.weight", Use::plain, {2 * n_embd, n_embd}, 1.0f);
    builder.norm("nextn.enorm.weight", n_embd);
    builder.norm("nextn.hnorm.weight", n_embd);
    builder.norm("nextn.shared_head_norm.weight", n_embd);
  }
  return {};
}

Status build_laguna(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  const std::int64_t dim_k = knobs.integer("attention.key_length");
  const std::int64_t dim_v = knobs.integer("attention.value_length");
  TESSERA_TRY(need(dim_k > 0, "attention.key_length", "must be positive"));
  builder.globals(1.0f);
  for (int layer = 0; layer < builder.n_layer(); ++layer) {
    const std::int64_t heads = knobs.at("attention.head_count", layer);
    const std::int64_t kv_heads = knobs.at("attention.head_count_kv", layer);
    builder.begin_layer(layer);
    builder.norm("attn_norm.weight", n_embd);
    builder.attention(
        {.q = heads * dim_k, .k = kv_heads * dim_k, .v = kv_heads * dim_v, .out = heads * dim_v});
    builder.qk_norms(dim_k, inverse_root(dim_k));
    const std::int64_t gates = knobs.flag("gate_per_element") ? heads * dim_v : heads;
    builder.matrix("attn_gate.weight", Use::plain, {n_embd, gates}, 1.0f);
    builder.norm("ffn_norm.weight", n_embd);
    if (layer < knobs.integer("leading_dense_block_count")) {
      builder.dense("", knobs.integer("feed_forward_length"));
      continue;
    }
    const std::int64_t n_expert = knobs.integer("expert_count");
    builder.matrix("ffn_gate_inp.weight", Use::float32, {n_embd, n_expert}, kRouterStd);
    builder.vector("exp_probs_b.bias", {n_expert}, {Fill::Kind::normal, 0.1f, 0});
    builder.experts({.n_expert = n_expert, .n_ff = knobs.integer("expert_feed_forward_length")},
                    knobs.number_or("expert_weights_scale", 1.0f));
    builder.dense("_shexp", knobs.integer("expert_shared_feed_forward_length") *
                                knobs.integer_or("expert_shared_count", 1));
  }
  return {};
}

namespace {

void add_gemma4_attention(LayoutBuilder& builder, int layer) {
  const Knobs& knobs = builder.knobs();
  const bool windowed = knobs.at("attention.sliding_window_pattern", layer) != 0;
  const std::string suffix = windowed ? "_swa" : "";
  const std::int64_t dim_k = knobs.integer("attention.key_length" + suffix);
  const std::int64_t dim_v = knobs.integer("attention.value_length" + suffix);
  const std::int64_t heads = knobs.at("attention.head_count", layer);
  const std::int64_t kv_heads = knobs.at("attention.head_count_kv", layer);
  const bool value_is_key = !windowed && knobs.flag("key_is_value");
  const bool shared =
      layer >= builder.n_layer() - knobs.integer_or("attention.shared_kv_layers", 0);
  builder.attention({.q = heads * dim_k,
                     .k = shared ? 0 : kv_heads * dim_k,
                     .v = shared || value_is_key ? 0 : kv_heads * dim_v,
                     .out = heads * dim_v});
  builder.qk_norms(dim_k, 1.0f);
}

void add_gemma4_ffn(LayoutBuilder& builder, int layer) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  builder.norm("ffn_norm.weight", n_embd);
  builder.dense("", knobs.at("feed_forward_length", layer));
  builder.norm("post_ffw_norm.weight", n_embd, builder.residual_gain());
  if (!knobs.has("expert_count")) return;
  const std::int64_t n_expert = knobs.integer("expert_count");
  builder.norm("post_ffw_norm_1.weight", n_embd);
  builder.norm("post_ffw_norm_2.weight", n_embd);
  builder.norm("pre_ffw_norm_2.weight", n_embd);
  // The router's input is already divided by sqrt(n_embd).
  builder.matrix("ffn_gate_inp.weight", Use::float32, {n_embd, n_expert},
                 kRouterStd / inverse_root(n_embd));
  builder.norm("ffn_gate_inp.scale", n_embd);
  builder.experts({.n_expert = n_expert, .n_ff = knobs.integer("expert_feed_forward_length")});
  builder.vector("ffn_down_exps.scale", {n_expert}, {Fill::Kind::uniform, 0.5f, 2.0f});
}

}  // namespace

Status build_gemma4(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  const std::int64_t dim = knobs.integer("attention.key_length");
  TESSERA_TRY(need(dim > 1 && knobs.integer("attention.key_length_swa") > 0, "attention.key_length",
                   "must be positive"));
  builder.globals(std::sqrt(static_cast<float>(n_embd)));
  if (knobs.flag("rope_freqs")) {
    builder.vector("rope_freqs.weight", {dim / 2},
                   {Fill::Kind::rope_factors, static_cast<float>(dim / 8), 0});
  }
  for (int layer = 0; layer < builder.n_layer(); ++layer) {
    builder.begin_layer(layer);
    builder.norm("attn_norm.weight", n_embd);
    add_gemma4_attention(builder, layer);
    builder.norm("post_attention_norm.weight", n_embd, builder.residual_gain());
    add_gemma4_ffn(builder, layer);
    // At most 1, so that the residual of a deep model stays bounded.
    if (knobs.flag("layer_output_scale")) {
      builder.vector("layer_output_scale.weight", {1}, {Fill::Kind::uniform, 0.8f, 1.2f});
    }
  }
  return {};
}

Status build_qwen3(LayoutBuilder& builder) {
  const Knobs& knobs = builder.knobs();
  const std::int64_t n_embd = builder.n_embd();
  const std::int64_t heads = knobs.integer("attention.head_count");
  const std::int64_t kv_heads = knobs.integer("attention.head_count_kv");
  const std::int64_t dim_k = knobs.integer("attention.key_length");
  const std::int64_t dim_v = knobs.integer("attention.value_length");
  TESSERA_TRY(need(dim_k > 0, "attention.key_length", "must be positive"));
  builder.globals(1.0f);
  for (int layer = 0; layer < builder.n_layer(); ++layer) {
    builder.begin_layer(layer);
    builder.norm("attn_norm.weight", n_embd);
    builder.attention(
        {.q = heads * dim_k, .k = kv_heads * dim_k, .v = kv_heads * dim_v, .out = heads * dim_v});
    builder.qk_norms(dim_k, inverse_root(dim_k));
    builder.norm("ffn_norm.weight", n_embd);
    builder.dense("", knobs.integer("feed_forward_length"));
  }
  return {};
}

}  // namespace tessera::synth
