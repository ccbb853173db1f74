// qwen35 (dense) and qwen35moe: attention layers among Gated DeltaNet layers.
#include <algorithm>
#include <cmath>
#include <string>

#include "model/readers/parts.h"
#include "model/readers/readers.h"

namespace tessera {
namespace {

constexpr int kMaxConvWidth = 64;  // of the format; a device may compute less
constexpr int kDefaultInterval = 4;

// A file may name the architecture with "_mtp" and its keys without.
std::string key_prefix(const gguf::Metadata& metadata, std::string architecture) {
  constexpr std::string_view kMtp = "_mtp";
  if (architecture.ends_with(kMtp) && !metadata.contains(architecture + ".block_count")) {
    architecture.resize(architecture.size() - kMtp.size());
  }
  return architecture;
}

struct Blocks {
  int trunk = 0;  // blocks that plain decoding runs
  int all = 0;    // with the MTP blocks behind them
};

Result<Blocks> read_blocks(const Keys& keys, const gguf::File& file) {
  Blocks blocks;
  TESSERA_ASSIGN(blocks.all, keys.integer({"block_count"}, {1, kMaxBlocks}));
  TESSERA_ASSIGN(int mtp, keys.integer_or({"nextn_predict_layers"}, 0, {0, blocks.all - 1}));
  blocks.trunk = blocks.all - mtp;
  const auto has_block = [&](int il) {
    return file.find_tensor(fmt::format("blk.{}.attn_norm.weight", il)) != nullptr;
  };
  if (mtp > 0 && !has_block(0) && has_block(blocks.trunk)) {
    return Error::make(ErrorCode::unsupported,
                       "the file holds only the multi-token-prediction block (blk.{}), not the {} "
                       "blocks of the model",
                       blocks.trunk, blocks.trunk);
  }
  return blocks;
}

// Which trunk layers are Gated DeltaNet: the file's own list, else KV head counts of 0, else every
// layer but each interval-th.
Result<std::vector<bool>> read_recurrent(const Keys& keys, Blocks blocks,
                                         const std::vector<int>& kv_heads) {
  constexpr const char* kList = "attention.recurrent_layers";
  if (keys.has(kList)) {
    TESSERA_ASSIGN(auto listed, keys.metadata().get_bool_array(keys.full(kList)));
    if (listed.size() != static_cast<std::size_t>(blocks.all)) {
      return keys.invalid(kList, "{} entries for {} blocks", listed.size(), blocks.all);
    }
    listed.resize(static_cast<std::size_t>(blocks.trunk));
    return listed;
  }
  std::vector<bool> recurrent;
  TESSERA_ASSIGN(int interval,
                 keys.integer_or({"full_attention_interval"}, kDefaultInterval, {1, kMaxBlocks}));
  const bool by_heads = std::ranges::find(kv_heads, 0) != kv_heads.end();
  for (int il = 0; il < blocks.trunk; ++il) {
    recurrent.push_back(by_heads ? kv_heads[static_cast<std::size_t>(il)] == 0
                                 : (il + 1) % interval != 0);
  }
  return recurrent;
}

Result<GatedDeltaSpec> read_gated_delta(const Keys& keys) {
  GatedDeltaSpec spec;
  TESSERA_ASSIGN(spec.n_key_head, keys.integer({"ssm.group_count"}, {1, kMaxHeads}));
  TESSERA_ASSIGN(spec.n_value_head, keys.integer({"ssm.time_step_rank"}, {1, kMaxHeads}));
  TESSERA_ASSIGN(spec.dim_k, keys.integer({"ssm.state_size"}, {1, kMaxHeadDim}));
  TESSERA_ASSIGN(spec.conv_width, keys.integer({"ssm.conv_kernel"}, {1, kMaxConvWidth}));
  TESSERA_ASSIGN(int inner, keys.integer({"ssm.inner_size"}, {1, kMaxWidth}));
  if (spec.n_value_head % spec.n_key_head != 0) {
    return keys.invalid("ssm.time_step_rank", "{} is not a multiple of the {} of ssm.group_count",
                        spec.n_value_head, spec.n_key_head);
  }
  if (inner % spec.n_value_head != 0 || inner / spec.n_value_head > kMaxHeadDim) {
    return keys.invalid("ssm.inner_size", "{} is not {} heads of at most {}", inner,
                        spec.n_value_head, kMaxHeadDim);
  }
  spec.dim_v = inner / spec.n_value_head;
  TESSERA_ASSIGN(bool reordered, keys.boolean_or({"ssm.v_head_reordered"}, true));
  spec.grouped_values = !reordered;
  return spec;
}

Status check_sections(const Keys& keys, int n_rot) {
  // Text positions are equal in every section, so only their plausibility matters.
  constexpr const char* kSections = "rope.dimension_sections";
  if (!keys.has(kSections)) return {};
  TESSERA_ASSIGN(auto sections, keys.metadata().get_int_array(keys.full(kSections)));
  if (sections.size() != 3 && sections.size() != 4) {
    return keys.invalid(kSections, "{} entries; it must have 3 or 4", sections.size());
  }
  for (std::int64_t section : sections) {
    if (section < 0 || section > n_rot / 2) {
      return keys.invalid(kSections, "{} is not between 0 and {}", section, n_rot / 2);
    }
  }
  return {};
}

// What attention layers share: all but the head counts.
Result<AttentionSpec> read_attention(const Keys& keys, int context_length) {
  AttentionSpec spec;
  TESSERA_ASSIGN(spec.head_dim_k, keys.integer({"attention.key_length"}, {2, kMaxHeadDim}));
  TESSERA_ASSIGN(spec.head_dim_v, keys.integer({"attention.value_length"}, {2, kMaxHeadDim}));
  if (spec.head_dim_k != spec.head_dim_v) {
    return keys.invalid("attention.value_length", "{} differs from the {} of attention.key_length",
                        spec.head_dim_v, spec.head_dim_k);
  }
  TESSERA_ASSIGN(int n_rot, keys.integer({"rope.dimension_count"}, {2, spec.head_dim_k}));
  TESSERA_ASSIGN(n_rot, read_n_rot(keys, {"rope.dimension_count"}, {.dim = spec.head_dim_k}));
  TESSERA_TRY(check_sections(keys, n_rot));
  TESSERA_ASSIGN(float base, keys.positive({"rope.freq_base"}));
  TESSERA_ASSIGN(spec.rope, scaled_rope(keys, n_rot, base, context_length, {}));
  spec.scale = 1 / std::sqrt(static_cast<float>(spec.head_dim_k));
  spec.qk_norm = true;
  spec.gate = OutputGate::sigmoid_in_query;
  return spec;
}

struct Ffn {
  std::optional<DenseFfnSpec> dense;
  std::vector<MoeSpec> moe;  // per block; empty for a dense model
};

Result<Ffn> read_ffn(const Keys& keys, Blocks blocks) {
  Ffn ffn;
  if (!keys.has("expert_count")) {
    TESSERA_ASSIGN(int n_ff, keys.integer({"feed_forward_length"}, {1, kMaxWidth}));
    ffn.dense = DenseFfnSpec{.n_ff = n_ff};
    return ffn;
  }
  TESSERA_ASSIGN(int n_expert, keys.integer({"expert_count"}, {1, kMaxExperts}));
  TESSERA_ASSIGN(auto used, keys.per_layer({"expert_used_count"}, blocks.all, {1, kMaxExperts}));
  TESSERA_ASSIGN(auto widths,
                 keys.per_layer({"expert_feed_forward_length"}, blocks.all, {1, kMaxWidth}));
  TESSERA_ASSIGN(int shared,
                 keys.integer_or({"expert_shared_feed_forward_length"}, widths[0], {1, kMaxWidth}));
  TESSERA_ASSIGN(bool normalize, keys.boolean_or({"norm_top_k_prob"}, true));
  ffn.dense = DenseFfnSpec{.n_ff = shared, .scalar_gate = true};
  for (std::size_t il = 0; il < used.size(); ++il) {
    MoeSpec& moe = ffn.moe.emplace_back();
    moe.n_expert = n_expert;
    moe.n_used = used[il];
    moe.n_ff = widths[il];
    moe.router.normalize = normalize;
    TESSERA_TRY(check_moe(keys, moe));
  }
  return ffn;
}

void expect_gated_delta(LayerTensors& tensors, const GatedDeltaSpec& spec, std::int64_t n_embd) {
  const std::int64_t values = spec.value_width();
  const std::int64_t heads = spec.n_value_head;
  tensors.matrix(TensorRole::gdn_qkv, "attn_qkv.weight", spec.conv_channels(), n_embd);
  tensors.matrix(TensorRole::gdn_gate, "attn_gate.weight", values, n_embd);
  tensors.matrix(TensorRole::gdn_beta, "ssm_beta.weight", heads, n_embd);
  tensors.matrix(TensorRole::gdn_alpha, "ssm_alpha.weight", heads, n_embd);
  tensors.matrix(TensorRole::gdn_conv, "ssm_conv1d.weight", spec.conv_channels(), spec.conv_width);
  tensors.vector(TensorRole::gdn_dt_bias, "ssm_dt.bias", heads, {"ssm_dt"});
  tensors.vector(TensorRole::gdn_a, "ssm_a", heads);
  tensors.vector(TensorRole::gdn_norm, "ssm_norm.weight", spec.dim_v);
  tensors.matrix(TensorRole::gdn_out, "ssm_out.weight", n_embd, values);
}

void expect_moe(LayerTensors& tensors, const LayerSpec& layer, std::int64_t n_embd) {
  tensors.matrix(TensorRole::router, "ffn_gate_inp.weight", layer.moe->n_expert, n_embd);
  tensors.experts(*layer.moe, n_embd);
  tensors.vector(TensorRole::dense_scalar_gate, "ffn_gate_inp_shexp.weight", n_embd);
  tensors.dense(*layer.dense, n_embd, "_shexp");
}

}  // namespace

Result<FamilyModel> read_qwen35(const gguf::File& file) {
  FamilyModel model;
  const gguf::Metadata& metadata = file.metadata();
  TESSERA_ASSIGN(std::string_view architecture, metadata.get_string("general.architecture"));
  const Keys keys(metadata, key_prefix(metadata, std::string(architecture)));
  TESSERA_ASSIGN(Blocks blocks, read_blocks(keys, file));
  TESSERA_TRY(read_globals(file, keys, model));
  TESSERA_ASSIGN(auto heads, keys.per_layer({"attention.head_count"}, blocks.all, {0, kMaxHeads}));
  TESSERA_ASSIGN(auto kv_heads,
                 keys.per_layer({"attention.head_count_kv"}, blocks.all, {0, kMaxHeads}));
  TESSERA_ASSIGN(auto recurrent, read_recurrent(keys, blocks, kv_heads));
  TESSERA_ASSIGN(AttentionSpec attention, read_attention(keys, model.spec.context_length));
  TESSERA_ASSIGN(GatedDeltaSpec gated_delta, read_gated_delta(keys));
  TESSERA_ASSIGN(Ffn ffn, read_ffn(keys, blocks));

  const std::int64_t n_embd = model.spec.n_embd;
  for (int il = 0; il < blocks.trunk; ++il) {
    const auto at = static_cast<std::size_t>(il);
    LayerSpec& layer = model.spec.layers.emplace_back();
    LayerTensors tensors(model, file, il);
    tensors.vector(TensorRole::mixer_norm, "attn_norm.weight", n_embd);
    if (recurrent[at]) {
      layer.mixer = gated_delta;
      expect_gated_delta(tensors, gated_delta, n_embd);
    } else {
      attention.n_head = heads[at];
      attention.n_kv_head = kv_heads[at];
      if (heads[at] == 0) return keys.invalid("attention.head_count", "0 on layer {}", il);
      if (kv_heads[at] == 0) return keys.invalid("attention.head_count_kv", "0 on layer {}", il);
      TESSERA_TRY(check_attention(keys, attention, il));
      layer.mixer = attention;
      tensors.attention(attention, std::int64_t{2} * attention.n_head * attention.head_dim_k,
                        n_embd);
    }
    tensors.vector(TensorRole::ffn_norm, "post_attention_norm.weight", n_embd);
    layer.dense = ffn.dense;
    if (ffn.moe.empty()) {
      tensors.dense(*layer.dense, n_embd, "");
    } else {
      layer.moe = ffn.moe[at];
      expect_moe(tensors, layer, n_embd);
    }
  }
  return model;
}

}  // namespace tessera
