// What family readers share: the globals of a model, rotary tables, and the tensors that every
// family names alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/family.h"
#include "model/readers/keys.h"

namespace tessera {

// Fills name, widths, vocabulary, context, eps and whether the head is tied, and adds the three
// global tensors. The layers are the reader's.
Status read_globals(const gguf::File& file, const Keys& keys, FamilyModel& model);

// inv_freq[i] = base^(-2i/n_rot).
RopeSpec plain_rope(int n_rot, float base);

// The rotation that rope.scaling.* asks for: none, linear, or YaRN with the magnitude
// 1 + 0.1 ln(factor). Formulas: Peng et al., "YaRN" (2023), with its ramp rounded outwards to whole
// pairs.
struct ScalingDefaults {
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
};
Result<RopeSpec> scaled_rope(const Keys& keys, int n_rot, float base, int context_length,
                             ScalingDefaults defaults);

// Collects the expected tensors of one layer. Names lack "blk.N."; a full suffix is part of them.
class LayerTensors {
 public:
  LayerTensors(FamilyModel& model, const gguf::File& file, int layer)
      : model_(model), file_(file), layer_(layer) {}

  std::string name(std::string_view stem) const { return fmt::format("blk.{}.{}", layer_, stem); }
  const gguf::TensorInfo* find(std::string_view stem) const {
    return file_.find_tensor(name(stem));
  }

  void vector(TensorRole role, std::string_view stem, std::int64_t n,
              std::initializer_list<std::string_view> aliases = {});
  void matrix(TensorRole role, std::string_view stem, std::int64_t rows, std::int64_t cols,
              std::initializer_list<std::string_view> aliases = {});

  // attn_q, attn_k, attn_v and attn_output, with the two norms where there are any. The first three
  // may also be the rows of one attn_qkv tensor. q_rows is larger than the heads where a gate is
  // in.
  void attention(const AttentionSpec& spec, std::int64_t q_rows, std::int64_t n_embd);
  void dense(const DenseFfnSpec& spec, std::int64_t n_embd, std::string_view suffix);
  // ffn_{gate,up,down}_exps; gate and up may also be the halves of ffn_gate_up_exps.
  void experts(const MoeSpec& spec, std::int64_t n_embd);

 private:
  ExpectedTensor& add(TensorRole role, std::int64_t rows, std::int64_t cols);

  FamilyModel& model_;
  const gguf::File& file_;
  int layer_;
};

// The number of rotated dimensions: even, within the head.
struct RotatedHead {
  int dim = 0;
  int fallback = dim;  // where the file does not say how many
};
Result<int> read_n_rot(const Keys& keys, Keys::Names names, const RotatedHead& head);

// n_head % n_kv_head == 0, even head widths. `layer` is for the message.
Status check_attention(const Keys& keys, const AttentionSpec& spec, int layer);
Status check_moe(const Keys& keys, const MoeSpec& spec);

}  // namespace tessera
