// Absurd metadata and tensors: an error that names the culprit, before anything is sized by it.
#include <gtest/gtest.h>

#include <limits>

#include "model/test_edit.h"

namespace tessera {
namespace {

struct Absurdity {
  const char* model;
  const char* key;
};

class HostileKey : public testing::TestWithParam<Absurdity> {};

constexpr Absurdity kIntegers[] = {
    {"qwen35moe", "block_count"},
    {"qwen35moe", "context_length"},
    {"qwen35moe", "embedding_length"},
    {"qwen35moe", "attention.head_count"},
    {"qwen35moe", "attention.head_count_kv"},
    {"qwen35moe", "attention.key_length"},
    {"qwen35moe", "attention.value_length"},
    {"qwen35moe", "rope.dimension_count"},
    {"qwen35moe", "expert_count"},
    {"qwen35moe", "expert_used_count"},
    {"qwen35moe", "expert_feed_forward_length"},
    {"qwen35moe", "expert_shared_feed_forward_length"},
    {"qwen35moe", "ssm.conv_kernel"},
    {"qwen35moe", "ssm.state_size"},
    {"qwen35moe", "ssm.group_count"},
    {"qwen35moe", "ssm.time_step_rank"},
    {"qwen35moe", "ssm.inner_size"},
    {"qwen35moe", "vocab_size"},
    {"qwen35", "feed_forward_length"},
    {"laguna", "block_count"},
    {"laguna", "feed_forward_length"},
    {"laguna", "attention.head_count"},
    {"laguna", "attention.head_count_kv"},
    {"laguna", "rope.dimension_count"},
    {"laguna", "rope.dimension_count_swa"},
    {"laguna", "expert_count"},
    {"laguna", "expert_used_count"},
    {"laguna", "rope.scaling.original_context_length"},
    {"gemma4", "block_count"},
    {"gemma4", "feed_forward_length"},
    {"gemma4", "attention.head_count"},
    {"gemma4", "attention.head_count_kv"},
    {"gemma4", "attention.key_length"},
    {"gemma4", "attention.key_length_swa"},
    {"gemma4", "attention.value_length_swa"},
    {"gemma4", "attention.sliding_window"},
    {"gemma4", "attention.sliding_window_pattern"},
    {"gemma4", "rope.dimension_count_swa"},
    {"gemma4moe", "expert_used_count"},
    {"gemma4moe", "expert_feed_forward_length"},
    {"qwen3", "attention.key_length"},
    {"qwen3", "attention.head_count_kv"},
};

std::string architecture(const Absurdity& absurdity) {
  const std::string model = absurdity.model;
  return model == "gemma4moe" ? "gemma4" : model;
}

void expect_named(EditedFile& file, const std::string& key, const std::string& value) {
  const std::string error = file.error();
  EXPECT_NE(error.find(key), std::string::npos) << key << " = " << value << ": " << error;
  EXPECT_LT(error.size(), 3000u);
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST_P(HostileKey, IsNamed) {
  const std::string key = architecture(GetParam()) + "." + GetParam().key;
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 31}) {
    EditedFile file(golden_path(GetParam().model));
    file.set(key, value);
    expect_named(file, key, std::to_string(value));
  }
  EditedFile text(golden_path(GetParam().model));
  text.set(key, "eight");
  expect_named(text, key, "eight");
  EditedFile array(golden_path(GetParam().model));
  array.set_array(key, std::vector<std::int32_t>{1, 2});
  expect_named(array, key, "1, 2");
}

INSTANTIATE_TEST_SUITE_P(All, HostileKey, testing::ValuesIn(kIntegers));

constexpr Absurdity kReals[] = {
    {"qwen35moe", "attention.layer_norm_rms_epsilon"},
    {"qwen35moe", "rope.freq_base"},
    {"laguna", "rope.freq_base_swa"},
    {"laguna", "rope.scaling.factor"},
    {"laguna", "rope.scaling.yarn_beta_fast"},
    {"laguna", "expert_weights_scale"},
    {"gemma4", "rope.freq_base_swa"},
    {"qwen3", "rope.freq_base"},
};

TEST(HostileReal, IsNamed) {
  for (const Absurdity& absurdity : kReals) {
    const std::string key = architecture(absurdity) + "." + absurdity.key;
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      EditedFile file(golden_path(absurdity.model));
      file.set(key, value);
      expect_named(file, key, std::to_string(value));
    }
  }
}

TEST(HostileKeys, RequiredOnesAreNamedWhenMissing) {
  for (const Absurdity& absurdity : kIntegers) {
    const std::string name = absurdity.key;
    if (name == "vocab_size" || name.find("rope.") == 0 || name.find("shared") != name.npos ||
        name.find("_swa") != name.npos || name.find("head_count_kv") != name.npos ||
        name == "attention.key_length" || name == "attention.value_length") {
      continue;  // these have defaults somewhere
    }
    if (name == "expert_count") continue;  // its absence makes a dense model
    const std::string key = architecture(absurdity) + "." + name;
    EditedFile file(golden_path(absurdity.model));
    file.drop(key);
    expect_named(file, key, "missing");
  }
}

std::string error_with(const char* model, const char* key, auto value) {
  EditedFile file(golden_path(model));
  file.set(key, value);
  return file.error();
}

TEST(HostileMeaning, IsNamed) {
  const auto has = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  has(error_with("qwen3", "qwen3.attention.head_count_kv", std::uint32_t{3}), "head_count_kv");
  has(error_with("qwen3", "qwen3.attention.key_length", std::uint32_t{33}), "key_length");
  has(error_with("qwen3", "qwen3.rope.dimension_count", std::uint32_t{34}), "dimension_count");
  has(error_with("qwen3", "qwen3.rope.dimension_count", std::uint32_t{7}), "dimension_count");
  has(error_with("qwen3", "qwen3.rope.scaling.type", "longrope"), "rope.scaling.type");
  has(error_with("qwen35moe", "qwen35moe.expert_used_count", std::uint32_t{9}), "used_count");
  has(error_with("qwen35moe", "qwen35moe.ssm.time_step_rank", std::uint32_t{3}), "time_step_rank");
  has(error_with("qwen35moe", "qwen35moe.nextn_predict_layers", std::uint32_t{4}), "nextn_predict");
  has(error_with("laguna", "laguna.rope.scaling.factor", 0.5f), "rope.scaling.factor");
  has(error_with("laguna", "laguna.leading_dense_block_count", std::uint32_t{6}), "leading_dense");
  has(error_with("laguna", "laguna.expert_gating_func", std::uint32_t{3}), "expert_gating_func");
  has(error_with("laguna", "laguna.attention.sink_enabled", true), "sink_enabled");
  EditedFile scaled(golden_path("laguna"));
  scaled.set("laguna.rope.swa.scaling.factor", 2.0f).set("laguna.rope.swa.scaling.type", "linear");
  has(scaled.error(), "rope.swa.scaling.type");
}

TEST(HostileMeaning, UnsupportedModelsSaySo) {
  const auto has = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  has(error_with("qwen3", "general.architecture", "llama"), "laguna");
  has(error_with("qwen3", "general.architecture", "gemma4_mtp"), "not supported");
  has(error_with("qwen3", "general.type", "mmproj"), "mmproj");
  has(error_with("qwen3", "general.type", "adapter"), "general.type");
  has(error_with("gemma4", "gemma4.embedding_length_per_layer_input", std::uint32_t{256}),
      "embedding_length_per_layer_input");
}

TEST(HostileTensors, AllAreReportedInOneLine) {
  EditedFile file(golden_path("qwen35moe"));
  file.drop_tensor("blk.0.ssm_a")
      .drop_tensor("blk.3.attn_k.weight")
      .drop_tensor("blk.2.ffn_norm.weight")
      .drop_tensor("output_norm.weight")
      .add_tensor("output_norm.weight", {64});
  const std::string error = file.error();
  EXPECT_NE(error.find("3 tensors missing or wrong"), std::string::npos) << error;
  EXPECT_NE(error.find("blk.0.ssm_a is missing"), std::string::npos) << error;
  EXPECT_NE(error.find("blk.3.attn_k.weight is missing"), std::string::npos) << error;
  EXPECT_NE(error.find("output_norm.weight has shape [64] instead of [128]"), std::string::npos)
      << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(HostileTensors, TheLineIsBounded) {
  EditedFile file(golden_path("qwen3"));
  file.set("qwen3.block_count", std::uint32_t{1024});
  const std::string error = file.error();
  EXPECT_LT(error.size(), 2500u);
  EXPECT_NE(error.find("more"), std::string::npos) << error;
}

TEST(HostileTensors, SeparateScalesAreRefused) {
  EditedFile file(golden_path("qwen3"));
  file.add_tensor("blk.0.attn_q.scale", {1});
  EXPECT_NE(file.error().find("blk.0.attn_q.scale"), std::string::npos);
}

TEST(HostileTensors, RopeFactors) {
  EditedFile wrong(golden_path("gemma4"));
  wrong.drop_tensor("rope_freqs.weight").add_tensor("rope_freqs.weight", {16});
  EXPECT_NE(wrong.error().find("rope_freqs"), std::string::npos);
  EditedFile zero(golden_path("gemma4"));
  zero.drop_tensor("rope_freqs.weight").add_tensor("rope_freqs.weight", {32});
  EXPECT_NE(zero.error().find("rope_freqs"), std::string::npos);
}

TEST(HostileTokenizer, IsNamed) {
  const auto error = [](EditedFile& file) -> std::string {
    if (const Status status = file.write(); !status) return status.error().message;
    const auto in = gguf::File::open(file.path());
    const auto spec = read_tokenizer_spec(*in);
    return spec.ok() ? "" : spec.error().message;
  };
  EditedFile id(golden_path("qwen3"));
  id.set("tokenizer.ggml.eos_token_id", std::uint32_t{512});
  EXPECT_NE(error(id).find("eos_token_id"), std::string::npos);
  EditedFile none(golden_path("qwen3"));
  none.set("tokenizer.ggml.eos_token_id", std::uint32_t{0xffffffff});
  EXPECT_EQ(error(none), "");
  EditedFile types(golden_path("qwen3"));
  types.set_array("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 2});
  EXPECT_NE(error(types).find("token_type"), std::string::npos);
  EditedFile many(golden_path("qwen3"));
  many.set_array("tokenizer.ggml.tokens", std::vector<std::string>(513, "x"));
  EXPECT_NE(many.error().find("tokenizer.ggml.tokens"), std::string::npos);
  EditedFile suppressed(golden_path("qwen3"));
  suppressed.set_array("tokenizer.ggml.suppress_tokens", std::vector<std::int32_t>{512});
  EXPECT_NE(suppressed.error().find("suppress_tokens"), std::string::npos);
}

}  // namespace
}  // namespace tessera
