// The six golden files: made by the field's converter from the reference implementation.
#include <gtest/gtest.h>

#include <cmath>

#include "model/model.h"

namespace tessera {
namespace {

Model open_golden(const std::string& name) {
  Result<Model> model =
      Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
  if (!model) {
    ADD_FAILURE() << model.error().message;
    std::abort();
  }
  return *std::move(model);
}

void expect_globals(const Model& model, const std::string& architecture, int n_layer) {
  const ModelSpec& spec = model.spec();
  EXPECT_EQ(spec.architecture, architecture);
  EXPECT_EQ(spec.n_layer(), n_layer);
  EXPECT_EQ(spec.n_embd, 128);
  EXPECT_EQ(spec.n_vocab, 512);
  EXPECT_EQ(spec.n_token, 512);
  EXPECT_EQ(spec.context_length, 4096);
  EXPECT_FLOAT_EQ(spec.norm_eps, 1e-6f);
  EXPECT_EQ(model.find(TensorRole::output) == nullptr, spec.tied_head);
}

void expect_shape(const Model& model, TensorRole role, int layer, std::int64_t matrices,
                  std::int64_t rows, std::int64_t cols) {
  const TensorSlice* slice = model.find(role, layer);
  ASSERT_NE(slice, nullptr) << role_name(role) << " of layer " << layer;
  EXPECT_EQ(slice->matrices, matrices) << role_name(role);
  EXPECT_EQ(slice->rows, rows) << role_name(role);
  EXPECT_EQ(slice->cols, cols) << role_name(role);
  EXPECT_EQ(slice->row_stride, row_bytes(slice->type, cols)) << role_name(role);
}

TEST(Golden, Qwen35Moe) {
  const Model model = open_golden("qwen35moe");
  const ModelSpec& spec = model.spec();
  expect_globals(model, "qwen35moe", 4);
  EXPECT_EQ(model.ignored_tensors(), 0);
  EXPECT_EQ(model.tensors().size(), 76u);
  EXPECT_FALSE(spec.tied_head);
  const GatedDeltaSpec* delta = spec.layers[0].gated_delta();
  ASSERT_NE(delta, nullptr);
  EXPECT_EQ(delta->n_key_head, 2);
  EXPECT_EQ(delta->n_value_head, 4);
  EXPECT_EQ(delta->dim_k, 32);
  EXPECT_EQ(delta->dim_v, 32);
  EXPECT_EQ(delta->conv_width, 4);
  EXPECT_FALSE(delta->grouped_values);
  EXPECT_NE(spec.layers[2].gated_delta(), nullptr);
  const AttentionSpec* attention = spec.layers[3].attention();
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(attention->n_head, 4);
  EXPECT_EQ(attention->n_kv_head, 2);
  EXPECT_EQ(attention->head_dim_k, 32);
  EXPECT_EQ(attention->rope.n_rot, 8);
  ASSERT_EQ(attention->rope.inv_freq.size(), 4u);
  EXPECT_FLOAT_EQ(attention->rope.inv_freq[1], std::pow(1e7f, -0.25f));
  EXPECT_EQ(attention->gate, OutputGate::sigmoid_in_query);
  EXPECT_TRUE(attention->qk_norm);
  const MoeSpec& moe = spec.layers[0].moe.value();
  EXPECT_EQ(moe.n_expert, 8);
  EXPECT_EQ(moe.n_used, 3);
  EXPECT_EQ(moe.n_ff, 64);
  EXPECT_EQ(moe.router.gating, Gating::softmax);
  EXPECT_TRUE(moe.router.normalize);
  EXPECT_TRUE(spec.layers[0].dense->scalar_gate);
  expect_shape(model, TensorRole::gdn_qkv, 0, 1, 256, 128);
  expect_shape(model, TensorRole::gdn_conv, 0, 1, 256, 4);
  expect_shape(model, TensorRole::gdn_a, 0, 1, 1, 4);
  expect_shape(model, TensorRole::attn_q, 3, 1, 256, 128);
  expect_shape(model, TensorRole::moe_down, 3, 8, 128, 64);
  expect_shape(model, TensorRole::dense_scalar_gate, 3, 1, 1, 128);
  EXPECT_EQ(model.find(TensorRole::attn_q, 0), nullptr);
}

TEST(Golden, Qwen35) {
  const Model model = open_golden("qwen35");
  expect_globals(model, "qwen35", 4);
  EXPECT_EQ(model.ignored_tensors(), 0);
  EXPECT_FALSE(model.spec().layers[0].moe.has_value());
  EXPECT_FALSE(model.spec().layers[0].dense->scalar_gate);
  expect_shape(model, TensorRole::dense_gate, 0, 1, 256, 128);
  EXPECT_EQ(kv_groups(model.spec()).size(), 1u);
  EXPECT_EQ(kv_groups(model.spec())[0].layers, std::vector<int>{3});
}

TEST(Golden, Laguna) {
  const Model model = open_golden("laguna");
  const ModelSpec& spec = model.spec();
  expect_globals(model, "laguna", 5);
  EXPECT_EQ(model.ignored_tensors(), 0);
  const AttentionSpec& full = *spec.layers[0].attention();
  const AttentionSpec& windowed = *spec.layers[1].attention();
  EXPECT_EQ(full.n_head, 4);
  EXPECT_EQ(windowed.n_head, 8);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(windowed.window, 64);
  EXPECT_EQ(spec.layers[4].attention()->window, 0);
  EXPECT_EQ(full.rope.n_rot, 16);
  EXPECT_EQ(windowed.rope.n_rot, 32);
  EXPECT_FLOAT_EQ(full.rope.magnitude, 1 + 0.1f * std::log(8.0f));
  EXPECT_FLOAT_EQ(windowed.rope.magnitude, 1.0f);
  EXPECT_FLOAT_EQ(full.rope.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(full.rope.inv_freq[7], std::pow(5e5f, -14.0f / 16) / 8);
  EXPECT_EQ(full.gate, OutputGate::softplus_per_head);
  EXPECT_FALSE(spec.layers[0].moe.has_value());
  const MoeSpec& moe = spec.layers[1].moe.value();
  EXPECT_EQ(moe.router.gating, Gating::sigmoid);
  EXPECT_TRUE(moe.router.selection_bias);
  EXPECT_FLOAT_EQ(moe.router.weight_scale, 2.5f);
  EXPECT_FALSE(spec.layers[1].dense->scalar_gate);
  expect_shape(model, TensorRole::attn_gate, 1, 1, 8, 128);
  const auto groups = kv_groups(spec);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{0, 4}));
  EXPECT_EQ(groups[1].window, 64);
}

void expect_gemma4_attention(const ModelSpec& spec) {
  const AttentionSpec& windowed = *spec.layers[0].attention();
  const AttentionSpec& full = *spec.layers[2].attention();
  EXPECT_EQ(windowed.head_dim_k, 32);
  EXPECT_EQ(full.head_dim_k, 64);
  EXPECT_EQ(windowed.n_kv_head, 2);
  EXPECT_EQ(full.n_kv_head, 1);
  EXPECT_EQ(windowed.window, 64);
  EXPECT_EQ(full.window, 0);
  EXPECT_FALSE(windowed.value_is_key);
  EXPECT_TRUE(full.value_is_key);
  EXPECT_TRUE(full.v_norm);
  EXPECT_FLOAT_EQ(full.scale, 1.0f);
  EXPECT_EQ(full.rope.n_rot, 64);
  EXPECT_FLOAT_EQ(full.rope.inv_freq[7], std::pow(1e6f, -14.0f / 64));
  EXPECT_EQ(full.rope.inv_freq[8], 0.0f);
  EXPECT_GT(windowed.rope.inv_freq[15], 0.0f);
  EXPECT_FLOAT_EQ(spec.embedding_scale, std::sqrt(128.0f));
  EXPECT_FLOAT_EQ(spec.logit_softcap, 30.0f);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_TRUE(spec.layers[0].layer_scale);
  EXPECT_TRUE(spec.layers[0].mixer_post_norm);
  EXPECT_TRUE(spec.layers[0].ffn_post_norm);
}

TEST(Golden, Gemma4) {
  const Model model = open_golden("gemma4");
  expect_globals(model, "gemma4", 6);
  EXPECT_EQ(model.ignored_tensors(), 1);  // rope_freqs is folded into the spec
  expect_gemma4_attention(model.spec());
  EXPECT_FALSE(model.spec().layers[0].moe.has_value());
  EXPECT_EQ(model.spec().layers[0].dense->activation, Activation::gelu_tanh);
  EXPECT_FALSE(model.spec().layers[0].dense->post_norm);
}

TEST(Golden, Gemma4Moe) {
  const Model model = open_golden("gemma4moe");
  expect_globals(model, "gemma4", 6);
  EXPECT_EQ(model.ignored_tensors(), 1);
  expect_gemma4_attention(model.spec());
  const LayerSpec& layer = model.spec().layers[0];
  EXPECT_TRUE(layer.moe->router.own_input);
  EXPECT_TRUE(layer.moe->expert_scale);
  EXPECT_TRUE(layer.moe->own_norm);
  EXPECT_TRUE(layer.moe->post_norm);
  EXPECT_TRUE(layer.dense->post_norm);
  expect_shape(model, TensorRole::moe_gate, 0, 8, 64, 128);
  expect_shape(model, TensorRole::moe_up, 0, 8, 64, 128);
  const TensorSlice* gate = model.find(TensorRole::moe_gate, 0);
  const TensorSlice* up = model.find(TensorRole::moe_up, 0);
  EXPECT_EQ(gate->tensor, up->tensor);
  EXPECT_EQ(up->data - gate->data, 64 * gate->row_stride);
  EXPECT_EQ(gate->matrix_stride, 128 * gate->row_stride);
}

TEST(Golden, Qwen3) {
  const Model model = open_golden("qwen3");
  const ModelSpec& spec = model.spec();
  expect_globals(model, "qwen3", 4);
  EXPECT_EQ(model.ignored_tensors(), 0);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.layers[0].attention()->rope.n_rot, 32);
  EXPECT_EQ(spec.layers[0].attention()->gate, OutputGate::none);
  EXPECT_FLOAT_EQ(spec.layers[0].attention()->scale, 1 / std::sqrt(32.0f));
}

TEST(Golden, Tokenizer) {
  const Model model = open_golden("qwen35moe");
  const auto spec = read_tokenizer_spec(model.file());
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->model, "gpt2");
  EXPECT_EQ(spec->pre_tokenizer, "qwen35");
  EXPECT_EQ(spec->tokens.size(), 512u);
  EXPECT_EQ(spec->token_types.size(), 512u);
  EXPECT_EQ(spec->merges.size(), 144u);
  EXPECT_EQ(spec->eos_id, 509);
  EXPECT_EQ(spec->bos_id, 507);
  EXPECT_FALSE(spec->eot_id.has_value());
  EXPECT_FALSE(spec->add_bos.has_value());
}

}  // namespace
}  // namespace tessera
