#include <cmath>

#include "model/readers/parts.h"
#include "model/readers/readers.h"

namespace tessera {
namespace {

Result<AttentionSpec> read_attention(const Keys& keys, const ModelSpec& spec) {
  AttentionSpec attention;
  TESSERA_ASSIGN(attention.n_head, keys.integer({"attention.head_count"}, {1, kMaxHeads}));
  TESSERA_ASSIGN(attention.n_kv_head,
                 keys.integer_or({"attention.head_count_kv"}, attention.n_head, {1, kMaxHeads}));
  const int even_share = std::max(1, spec.n_embd / attention.n_head);
  TESSERA_ASSIGN(attention.head_dim_k,
                 keys.integer_or({"attention.key_length"}, even_share, {2, kMaxHeadDim}));
  TESSERA_ASSIGN(attention.head_dim_v,
                 keys.integer_or({"attention.value_length"}, even_share, {2, kMaxHeadDim}));
  TESSERA_TRY(check_attention(keys, attention, 0));
  TESSERA_ASSIGN(int n_rot,
                 read_n_rot(keys, {"rope.dimension_count"}, {.dim = attention.head_dim_k}));
  TESSERA_ASSIGN(float base, keys.positive({"rope.freq_base"}));
  TESSERA_ASSIGN(attention.rope, scaled_rope(keys, n_rot, base, spec.context_length, {}));
  attention.scale = 1 / std::sqrt(static_cast<float>(attention.head_dim_k));
  attention.qk_norm = true;
  return attention;
}

}  // namespace

Result<FamilyModel> read_qwen3(const gguf::File& file) {
  FamilyModel model;
  const Keys keys(file.metadata(), "qwen3");
  TESSERA_TRY(read_globals(file, keys, model));
  TESSERA_ASSIGN(int n_layer, keys.integer({"block_count"}, {1, kMaxBlocks}));
  TESSERA_ASSIGN(int n_ff, keys.integer({"feed_forward_length"}, {1, kMaxWidth}));
  TESSERA_ASSIGN(AttentionSpec attention, read_attention(keys, model.spec));

  const std::int64_t n_embd = model.spec.n_embd;
  for (int il = 0; il < n_layer; ++il) {
    LayerSpec& layer = model.spec.layers.emplace_back();
    layer.mixer = attention;
    layer.dense = DenseFfnSpec{.n_ff = n_ff};
    LayerTensors tensors(model, file, il);
    tensors.vector(TensorRole::mixer_norm, "attn_norm.weight", n_embd);
    tensors.attention(attention, std::int64_t{attention.n_head} * attention.head_dim_k, n_embd);
    tensors.vector(TensorRole::ffn_norm, "ffn_norm.weight", n_embd);
    tensors.dense(*layer.dense, n_embd, "");
  }
  return model;
}

}  // namespace tessera
