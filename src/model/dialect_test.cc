// The dialects of published files: other converters' names, keys and layouts of the same model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/model.h"
#include "model/synth.h"
#include "model/test_edit.h"

namespace tessera {
namespace {

using Ints = std::vector<std::int32_t>;
using Flags = std::vector<bool>;

std::string blk(int layer, const std::string& name) {
  return "blk." + std::to_string(layer) + "." + name;
}

std::vector<std::byte> rows_of(const TensorSlice& slice) {
  std::vector<std::byte> bytes;
  for (std::int64_t m = 0; m < slice.matrices; ++m) {
    for (std::int64_t r = 0; r < slice.rows; ++r) {
      const std::byte* row = slice.data + m * slice.matrix_stride + r * slice.row_stride;
      bytes.insert(bytes.end(), row, row + slice.row_stride);
    }
  }
  return bytes;
}

void expect_same_tensors(const Model& a, const Model& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const TensorSlice& slice : a.tensors()) {
    const TensorSlice* other = b.find(slice.role, slice.layer);
    ASSERT_NE(other, nullptr) << role_name(slice.role);
    EXPECT_EQ(rows_of(slice), rows_of(*other)) << role_name(slice.role) << " " << slice.layer;
  }
}

std::vector<char> kinds(const Model& model) {
  std::vector<char> kinds;
  for (const LayerSpec& layer : model.spec().layers) kinds.push_back(layer.attention() ? 'A' : 'D');
  return kinds;
}

TEST(Qwen35Dialect, RecurrentLayersWinOverTheInterval) {
  EditedFile file(golden_path("qwen35moe"));
  const auto model = file.set("qwen35moe.full_attention_interval", std::uint32_t{2}).open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(kinds(*model), (std::vector<char>{'D', 'D', 'D', 'A'}));
}

TEST(Qwen35Dialect, IntervalAndItsDefault) {
  EditedFile with(golden_path("qwen35moe"));
  with.drop("qwen35moe.attention.recurrent_layers");
  EXPECT_EQ(with.error(), "");
  EditedFile without(golden_path("qwen35moe"));
  without.drop("qwen35moe.attention.recurrent_layers").drop("qwen35moe.full_attention_interval");
  EXPECT_EQ(without.error(), "");
}

TEST(Qwen35Dialect, NamesOfOllama) {
  EditedFile file(golden_path("qwen35moe"));
  file.drop("qwen35moe.attention.recurrent_layers")
      .drop("qwen35moe.full_attention_interval")
      .set_array("qwen35moe.attention.head_count_kv", Ints{0, 0, 0, 2})
      .set_array("qwen35moe.rope.dimension_sections", Ints{2, 1, 1})
      .set("qwen35moe.ssm.v_head_reordered", true)
      .set("qwen35moe.norm_top_k_prob", true)
      .rename_tensor(blk(0, "ssm_dt.bias"), blk(0, "ssm_dt"))
      .rename_tensor(blk(1, "ssm_dt.bias"), blk(1, "ssm_dt"))
      .add_tensor("v.patch_embd.weight", {4, 4})
      .add_tensor("mtp.fc.weight", {4, 4});
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(kinds(*model), (std::vector<char>{'D', 'D', 'D', 'A'}));
  EXPECT_EQ(model->ignored_tensors(), 2);
  EXPECT_FALSE(model->spec().layers[0].gated_delta()->grouped_values);
  expect_same_tensors(*Model::open(golden_path("qwen35moe")), *model);
}

TEST(Qwen35Dialect, GroupedValueHeads) {
  EditedFile file(golden_path("qwen35"));
  const auto model = file.set("qwen35.ssm.v_head_reordered", false).open();
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(model->spec().layers[0].gated_delta()->grouped_values);
}

TEST(Qwen35Dialect, SharedGateMayBeAVector) {
  // The golden file has {E, 1}, the generator's {E}.
  EditedFile file(golden_path("qwen35moe"));
  file.drop_tensor(blk(0, "ffn_gate_inp_shexp.weight"))
      .add_tensor(blk(0, "ffn_gate_inp_shexp.weight"), {128});
  EXPECT_EQ(file.error(), "");
}

TEST(Qwen35Dialect, TiedHead) {
  EditedFile file(golden_path("qwen35"));
  const auto model = file.drop_tensor("output.weight").open();
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(model->spec().tied_head);
}

TEST(Qwen35Dialect, FusedTensors) {
  EditedFile file(golden_path("qwen35moe"));
  file.fuse(blk(3, "attn_qkv.weight"),
            {blk(3, "attn_q.weight"), blk(3, "attn_k.weight"), blk(3, "attn_v.weight")})
      .fuse(blk(1, "ffn_gate_up_exps.weight"),
            {blk(1, "ffn_gate_exps.weight"), blk(1, "ffn_up_exps.weight")});
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->ignored_tensors(), 0);
  expect_same_tensors(*Model::open(golden_path("qwen35moe")), *model);
}

std::string synthetic(const std::string& family, std::vector<std::string> overrides,
                      const std::string& name) {
  const std::string path =
      testing::TempDir() + "tessera_dialect_" + std::to_string(::getpid()) + name;
  SynthOptions options{.family = family, .preset = "tiny", .types = "f32"};
  options.overrides = std::move(overrides);
  const Status status = write_synthetic_model(options, path);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return path;
}

TEST(Qwen35Dialect, MtpBlock) {
  const std::string path =
      synthetic("qwen35moe", {"block_count=5", "nextn_predict_layers=1"}, "mtp");
  const auto model = Model::open(path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->spec().n_layer(), 4);
  EXPECT_EQ(model->ignored_tensors(), 20);

  EditedFile absent(path);  // declared, but lost in conversion
  for (const gguf::TensorInfo& tensor : model->file().tensors()) {
    if (tensor.name.starts_with("blk.4.")) absent.drop_tensor(tensor.name);
  }
  const auto without = absent.open();
  ASSERT_TRUE(without.ok()) << without.error().message;
  EXPECT_EQ(without->spec().n_layer(), 4);
  EXPECT_EQ(without->ignored_tensors(), 0);

  EditedFile draft(path);
  for (const gguf::TensorInfo& tensor : model->file().tensors()) {
    if (tensor.name.starts_with("blk.") && !tensor.name.starts_with("blk.4.")) {
      draft.drop_tensor(tensor.name);
    }
  }
  EXPECT_NE(draft.error().find("multi-token-prediction"), std::string::npos) << draft.error();

  EditedFile suffixed(path);
  suffixed.set("general.architecture", "qwen35moe_mtp");
  EXPECT_EQ(suffixed.error(), "");
  std::remove(path.c_str());
}

TEST(LagunaDialect, RopeDefaultsAndNamesOfOllama) {
  EditedFile file(golden_path("laguna"));
  file.drop("laguna.rope.dimension_count")
      .drop("laguna.rope.dimension_count_swa")
      .drop("laguna.rope.freq_base_swa")
      .set("laguna.rope.swa.freq_base", 20000.0f)
      .set("laguna.rope.swa.scaling.type", "linear")
      .set("laguna.rope.swa.scaling.factor", 1.0f)
      .set("laguna.rope.partial_rotary_factor", 0.5f)
      .set_array("laguna.attention.sliding_window_pattern", Flags{false, true, true, true, false})
      .set_array("laguna.attention.layer_types", std::vector<std::uint32_t>{0, 1, 1, 1, 0})
      .set("laguna.attention.gating_type", std::uint32_t{1})
      .drop("laguna.leading_dense_block_count")
      .set_array("laguna.dense_layers", std::vector<std::uint32_t>{0})
      .rename_tensor(blk(2, "attn_gate.weight"), blk(2, "attn_g.weight"));
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->spec().layers[0].attention()->rope.n_rot, 16);
  EXPECT_EQ(model->spec().layers[1].attention()->rope.n_rot, 32);
  EXPECT_FLOAT_EQ(model->spec().layers[1].attention()->rope.inv_freq[1],
                  std::pow(2e4f, -2.0f / 32));
  expect_same_tensors(*Model::open(golden_path("laguna")), *model);
}

TEST(LagunaDialect, YarnFactorsAreDerived) {
  EditedFile file(golden_path("laguna"));
  file.set("laguna.rope.scaling.yarn_attn_factor", 1.4f)
      .set("laguna.rope.scaling.yarn_ext_factor", 64.0f);
  const auto model = file.open();
  ASSERT_TRUE(model.ok());
  const auto plain = Model::open(golden_path("laguna"));
  EXPECT_EQ(model->spec().layers[0].attention()->rope.magnitude,
            plain->spec().layers[0].attention()->rope.magnitude);
  EXPECT_EQ(model->spec().layers[0].attention()->rope.inv_freq,
            plain->spec().layers[0].attention()->rope.inv_freq);
}

TEST(LagunaDialect, YarnRampOfThePublishedModel) {
  const std::string path = synthetic("laguna", {}, "ramp");
  const auto model = Model::open(path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const RopeSpec& rope = model->spec().layers[0].attention()->rope;
  EXPECT_NEAR(rope.magnitude, 1.34657359, 1e-6);
  // The ramp runs from pair 5 to pair 16: below it nothing is interpolated, above it all is.
  const auto base = [](int pair) { return std::pow(5e5, -2.0 * pair / 64); };
  EXPECT_NEAR(static_cast<double>(rope.inv_freq[5]) / base(5), 1.0, 1e-6);
  EXPECT_LT(static_cast<double>(rope.inv_freq[6]) / base(6), 0.95);
  EXPECT_NEAR(static_cast<double>(rope.inv_freq[16]) / base(16), 1.0 / 32, 1e-6);
  EXPECT_GT(static_cast<double>(rope.inv_freq[15]) / base(15), 1.1 / 32);
  std::remove(path.c_str());
}

TEST(LagunaDialect, WithoutWindowAndWithGatePerElement) {
  const std::string path =
      synthetic("laguna",
                {"block_count=3", "attention.sliding_window=", "leading_dense_block_count=2",
                 "gate_per_element=true", "attention.head_count=4", "tied_head=true",
                 "expert_gating_func=", "expert_weights_scale=1", "rope.dimension_count=128"},
                "elements");
  const auto model = Model::open(path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const LayerSpec& layer : model->spec().layers) {
    EXPECT_EQ(layer.attention()->window, 0);
    EXPECT_EQ(layer.attention()->gate, OutputGate::softplus_per_element);
  }
  EXPECT_FALSE(model->spec().layers[1].moe.has_value());
  EXPECT_EQ(model->spec().layers[2].moe->router.gating, Gating::sigmoid);
  EXPECT_EQ(kv_groups(model->spec()).size(), 1u);
  std::remove(path.c_str());
}

TEST(LagunaDialect, RouterSoftcap) {
  EditedFile file(golden_path("laguna"));
  const auto model = file.set("laguna.router_logit_softcapping", 30.0f).open();
  ASSERT_TRUE(model.ok());
  EXPECT_FLOAT_EQ(model->spec().layers[1].moe->router.logit_softcap, 30.0f);
}

TEST(Gemma4Dialect, WithoutRopeFactorsAQuarterTurns) {
  EditedFile file(golden_path("gemma4"));
  const auto model = file.drop_tensor("rope_freqs.weight").open();
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->spec().layers[2].attention()->rope.inv_freq,
            Model::open(golden_path("gemma4"))->spec().layers[2].attention()->rope.inv_freq);
}

TEST(Gemma4Dialect, OptionalParts) {
  EditedFile file(golden_path("gemma4"));
  file.drop_tensor(blk(1, "layer_output_scale.weight"))
      .drop("gemma4.final_logit_softcapping")
      .set_array("tokenizer.ggml.suppress_tokens", Ints{500, 3});
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE(model->spec().layers[0].layer_scale);
  EXPECT_FALSE(model->spec().layers[1].layer_scale);
  EXPECT_EQ(model->spec().logit_softcap, 0.0f);
  EXPECT_EQ(model->spec().suppressed_tokens, (std::vector<TokenId>{3, 500}));
}

TEST(Gemma4Dialect, SharedKvGoesToTheLastLayerOfTheKind) {
  const std::string path =
      synthetic("gemma4",
                {"block_count=7", "attention.sliding_window_pattern=1,1,0,1,0,1,0",
                 "attention.shared_kv_layers=2", "key_is_value=false", "attention.head_count_kv=1"},
                "shared");
  const auto model = Model::open(path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->spec().layers[5].attention()->kv_source, 3);
  EXPECT_EQ(model->spec().layers[6].attention()->kv_source, 4);
  EXPECT_EQ(model->spec().layers[4].attention()->kv_source, -1);
  EXPECT_EQ(model->find(TensorRole::attn_k, 5), nullptr);
  EXPECT_EQ(model->find(TensorRole::attn_k_norm, 5), nullptr);
  const auto groups = kv_groups(model->spec());
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(groups[1].layers, (std::vector<int>{2, 4}));
  EditedFile none(path);
  none.set("gemma4.attention.shared_kv_layers", std::uint32_t{5});
  EXPECT_NE(none.error().find("shared_kv_layers"), std::string::npos);
  std::remove(path.c_str());
}

TEST(Qwen3Dialect, YarnAndStoredHead) {
  EditedFile file(golden_path("qwen3"));
  file.set("qwen3.rope.scaling.type", "yarn")
      .set("qwen3.rope.scaling.factor", 4.0f)
      .set("qwen3.rope.scaling.original_context_length", std::uint32_t{1024})
      .add_tensor("output.weight", {128, 512});
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_FALSE(model->spec().tied_head);
  const RopeSpec& rope = model->spec().layers[0].attention()->rope;
  EXPECT_FLOAT_EQ(rope.magnitude, 1 + 0.1f * std::log(4.0f));
  EXPECT_FLOAT_EQ(rope.inv_freq[15], std::pow(1e6f, -30.0f / 32) / 4);
}

TEST(Dialect, FewerTokensThanRows) {
  const auto in = gguf::File::open(golden_path("qwen3"));
  const auto tokens = in->metadata().get_string_array("tokenizer.ggml.tokens");
  const std::vector<std::string> fewer(tokens->begin(), tokens->begin() + 510);
  EditedFile file(golden_path("qwen3"));
  file.set_array("tokenizer.ggml.tokens", fewer).drop("tokenizer.ggml.token_type");
  const auto model = file.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->spec().n_token, 510);
  EXPECT_EQ(model->spec().n_vocab, 512);
}

}  // namespace
}  // namespace tessera
