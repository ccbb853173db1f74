// The presets: for each family the dimensions of a tiny, a mini and the published model.
//
// Published dimensions: qwen35moe 35B-A3B, qwen35 27B, laguna XS 2.1, gemma4 31B, gemma4moe
// 26B-A4B, qwen3 0.6B. The tiny ones have rows that K-quants fit (except gemma4moe, which has some
// that they do not, as the published one has) and take every branch of their family.
#include "model/synth/knobs.h"

namespace tessera::synth {
namespace {

using enum KnobKind;
constexpr bool kOptional = true;
constexpr auto kGenerator = KnobPlace::generator;
constexpr auto kFullKey = KnobPlace::full_key;

constexpr KnobDef kQwen35Moe[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"4", "8", "40"}},
    {"context_length", integer, {"4096", "32768", "262144"}},
    {"embedding_length", integer, {"256", "1024", "2048"}},
    {"attention.head_count", integer, {"4", "8", "16"}},
    {"attention.head_count_kv", integer, {"2", "2", "2"}},
    {"attention.key_length", integer, {"64", "128", "256"}},
    {"attention.value_length", integer, {"64", "128", "256"}},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"attention.recurrent_layers", flags, {}, kOptional},
    {"full_attention_interval", integer, {"4", "4", "4"}},
    {"rope.dimension_count", integer, {"16", "32", "64"}},
    {"rope.dimension_sections", integers, {"3,3,2,0", "6,5,5,0", "11,11,10,0"}, kOptional},
    {"rope.freq_base", real, {"1e7", "1e7", "1e7"}},
    {"rope.scaling.type", text, {}, kOptional},
    {"rope.scaling.factor", real, {}, kOptional},
    {"rope.scaling.original_context_length", integer, {}, kOptional},
    {"ssm.conv_kernel", integer, {"4", "4", "4"}},
    {"ssm.state_size", integer, {"64", "128", "128"}},
    {"ssm.group_count", integer, {"2", "8", "16"}},
    {"ssm.time_step_rank", integer, {"4", "16", "32"}},
    {"ssm.inner_size", integer, {"256", "2048", "4096"}},
    {"expert_count", integer, {"8", "64", "256"}},
    {"expert_used_count", integer, {"2", "8", "8"}},
    {"expert_feed_forward_length", integer, {"256", "256", "512"}},
    {"expert_shared_feed_forward_length", integer, {"512", "256", "512"}},
    {"nextn_predict_layers", integer, {}, kOptional},
    {"vocab_size", integer, {"512", "32768", "248320"}, false, kGenerator},
    {"tied_head", flag, {}, kOptional, kGenerator},
    {"fused_gate_up", flag, {}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
};

constexpr KnobDef kQwen35[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"4", "8", "64"}},
    {"context_length", integer, {"4096", "32768", "262144"}},
    {"embedding_length", integer, {"256", "1024", "5120"}},
    {"feed_forward_length", integer, {"512", "3072", "17408"}},
    {"attention.head_count", integer, {"4", "8", "24"}},
    {"attention.head_count_kv", integer, {"2", "2", "4"}},
    {"attention.key_length", integer, {"64", "128", "256"}},
    {"attention.value_length", integer, {"64", "128", "256"}},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"attention.recurrent_layers", flags, {}, kOptional},
    {"full_attention_interval", integer, {"4", "4", "4"}},
    {"rope.dimension_count", integer, {"16", "32", "64"}},
    {"rope.dimension_sections", integers, {"3,3,2,0", "6,5,5,0", "11,11,10,0"}, kOptional},
    {"rope.freq_base", real, {"1e7", "1e7", "1e7"}},
    {"rope.scaling.type", text, {}, kOptional},
    {"rope.scaling.factor", real, {}, kOptional},
    {"rope.scaling.original_context_length", integer, {}, kOptional},
    {"ssm.conv_kernel", integer, {"4", "4", "4"}},
    {"ssm.state_size", integer, {"64", "128", "128"}},
    {"ssm.group_count", integer, {"4", "8", "16"}},
    {"ssm.time_step_rank", integer, {"12", "24", "48"}},
    {"ssm.inner_size", integer, {"768", "3072", "6144"}},
    {"nextn_predict_layers", integer, {}, kOptional},
    {"vocab_size", integer, {"512", "32768", "248320"}, false, kGenerator},
    {"tied_head", flag, {}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
};

constexpr KnobDef kLaguna[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"8", "8", "40"}},
    {"context_length", integer, {"131072", "32768", "262144"}},
    {"embedding_length", integer, {"256", "1024", "2048"}},
    {"feed_forward_length", integer, {"512", "2048", "8192"}},
    {"attention.head_count", integers, {"12,16,16,16", "12,16,16,16", "48,64,64,64"}},
    {"attention.head_count_kv", integers, {"2", "2", "8"}},
    {"attention.key_length", integer, {"128", "128", "128"}},
    {"attention.value_length", integer, {"128", "128", "128"}},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"attention.sliding_window", integer, {"8", "512", "512"}, kOptional},
    {"attention.sliding_window_pattern", flags, {}, kOptional},
    {"rope.freq_base", real, {"500000", "500000", "500000"}},
    {"rope.freq_base_swa", real, {"10000", "10000", "10000"}},
    {"rope.dimension_count", integer, {"64", "64", "64"}, kOptional},
    {"rope.dimension_count_swa", integer, {"128", "128", "128"}, kOptional},
    {"rope.scaling.type", text, {"yarn", "yarn", "yarn"}, kOptional},
    {"rope.scaling.factor", real, {"32", "32", "32"}, kOptional},
    {"rope.scaling.original_context_length", integer, {"4096", "8192", "8192"}, kOptional},
    {"rope.scaling.yarn_beta_fast", real, {"64", "64", "64"}, kOptional},
    {"rope.scaling.yarn_beta_slow", real, {"1", "1", "1"}, kOptional},
    {"rope.scaling.yarn_attn_factor", real, {}, kOptional},
    {"rope.scaling.yarn_ext_factor", real, {}, kOptional},
    {"expert_count", integer, {"8", "64", "256"}},
    {"expert_used_count", integer, {"3", "8", "8"}},
    {"expert_feed_forward_length", integer, {"256", "256", "512"}},
    {"expert_shared_feed_forward_length", integer, {"512", "256", "512"}},
    {"expert_shared_count", integer, {}, kOptional},
    {"expert_weights_norm", flag, {"true", "true", "true"}, kOptional},
    {"expert_weights_scale", real, {"2.5", "2.5", "2.5"}, kOptional},
    {"expert_gating_func", integer, {"2", "2", "2"}, kOptional},
    {"router_logit_softcapping", real, {}, kOptional},
    {"leading_dense_block_count", integer, {"1", "1", "1"}},
    {"vocab_size", integer, {"512", "32768", "100352"}},
    {"tied_head", flag, {}, kOptional, kGenerator},
    {"fused_gate_up", flag, {}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
    {"gate_per_element", flag, {}, kOptional, kGenerator},
};

constexpr KnobDef kGemma4[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"6", "12", "60"}},
    {"context_length", integer, {"4096", "32768", "262144"}},
    {"embedding_length", integer, {"256", "1024", "5376"}},
    {"feed_forward_length", integers, {"512", "3072", "21504"}},
    {"attention.head_count", integers, {"4", "8", "32"}},
    {"attention.head_count_kv", integers, {"2,2,1", "4,4,4,4,4,1", "16,16,16,16,16,4"}},
    {"attention.key_length", integer, {"512", "512", "512"}},
    {"attention.value_length", integer, {"512", "512", "512"}},
    {"attention.key_length_swa", integer, {"256", "256", "256"}},
    {"attention.value_length_swa", integer, {"256", "256", "256"}},
    {"attention.sliding_window", integer, {"8", "512", "1024"}},
    {"attention.sliding_window_pattern", flags, {"1,1,0", "1,1,1,1,1,0", "1,1,1,1,1,0"}},
    {"attention.shared_kv_layers", integer, {"0", "0", "0"}, kOptional},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"embedding_length_per_layer_input", integer, {"0", "0", "0"}, kOptional},
    {"final_logit_softcapping", real, {"30", "30", "30"}, kOptional},
    {"rope.freq_base", real, {"1e6", "1e6", "1e6"}},
    {"rope.freq_base_swa", real, {"1e4", "1e4", "1e4"}},
    {"rope.dimension_count", integer, {"512", "512", "512"}, kOptional},
    {"rope.dimension_count_swa", integer, {"256", "256", "256"}, kOptional},
    {"vocab_size", integer, {"512", "32768", "262144"}, false, kGenerator},
    {"tied_head", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
    {"rope_freqs", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"layer_output_scale", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"key_is_value", flag, {"true", "true", "true"}, kOptional, kGenerator},
};

constexpr KnobDef kGemma4Moe[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"6", "12", "30"}},
    {"context_length", integer, {"4096", "32768", "262144"}},
    {"embedding_length", integer, {"256", "1024", "2816"}},
    {"feed_forward_length", integers, {"160", "1056", "2112"}},
    {"attention.head_count", integers, {"4", "8", "16"}},
    {"attention.head_count_kv", integers, {"2,2,1", "4,4,4,4,4,1", "8,8,8,8,8,2"}},
    {"attention.key_length", integer, {"64", "512", "512"}},
    {"attention.value_length", integer, {"64", "512", "512"}},
    {"attention.key_length_swa", integer, {"32", "256", "256"}},
    {"attention.value_length_swa", integer, {"32", "256", "256"}},
    {"attention.sliding_window", integer, {"8", "512", "1024"}},
    {"attention.sliding_window_pattern", flags, {"1,1,0", "1,1,1,1,1,0", "1,1,1,1,1,0"}},
    {"attention.shared_kv_layers", integer, {"0", "0", "0"}, kOptional},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"embedding_length_per_layer_input", integer, {"0", "0", "0"}, kOptional},
    {"final_logit_softcapping", real, {"30", "30", "30"}, kOptional},
    {"rope.freq_base", real, {"1e6", "1e6", "1e6"}},
    {"rope.freq_base_swa", real, {"1e4", "1e4", "1e4"}},
    {"rope.dimension_count", integer, {"64", "512", "512"}, kOptional},
    {"rope.dimension_count_swa", integer, {"32", "256", "256"}, kOptional},
    {"expert_count", integer, {"8", "32", "128"}},
    {"expert_used_count", integer, {"2", "4", "8"}},
    {"expert_feed_forward_length", integer, {"96", "352", "704"}},
    {"vocab_size", integer, {"512", "32768", "262144"}, false, kGenerator},
    {"tied_head", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"fused_gate_up", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
    {"rope_freqs", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"layer_output_scale", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"key_is_value", flag, {"true", "true", "true"}, kOptional, kGenerator},
};

constexpr KnobDef kQwen3[] = {
    {"general.name", text, {"Synthetic", "Synthetic", "Synthetic"}, kOptional, kFullKey},
    {"block_count", integer, {"3", "8", "28"}},
    {"context_length", integer, {"4096", "32768", "40960"}},
    {"embedding_length", integer, {"256", "1024", "1024"}},
    {"feed_forward_length", integer, {"512", "3072", "3072"}},
    {"attention.head_count", integer, {"8", "16", "16"}},
    {"attention.head_count_kv", integer, {"4", "8", "8"}},
    {"attention.key_length", integer, {"64", "128", "128"}},
    {"attention.value_length", integer, {"64", "128", "128"}},
    {"attention.layer_norm_rms_epsilon", real, {"1e-6", "1e-6", "1e-6"}},
    {"rope.freq_base", real, {"1e6", "1e6", "1e6"}},
    {"rope.dimension_count", integer, {}, kOptional},
    {"rope.scaling.type", text, {}, kOptional},
    {"rope.scaling.factor", real, {}, kOptional},
    {"rope.scaling.original_context_length", integer, {}, kOptional},
    {"vocab_size", integer, {"512", "32768", "151936"}, false, kGenerator},
    {"tied_head", flag, {"true", "true", "true"}, kOptional, kGenerator},
    {"fused_qkv", flag, {}, kOptional, kGenerator},
};

constexpr FamilyPreset kFamilies[] = {
    {"qwen35moe", "qwen35moe", kQwen35Moe}, {"qwen35", "qwen35", kQwen35},
    {"laguna", "laguna", kLaguna},          {"gemma4", "gemma4", kGemma4},
    {"gemma4moe", "gemma4", kGemma4Moe},    {"qwen3", "qwen3", kQwen3},
};

}  // namespace

std::span<const FamilyPreset> family_presets() {
  return kFamilies;
}

}  // namespace tessera::synth
