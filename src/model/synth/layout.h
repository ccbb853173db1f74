// Layout: what a synthetic file will hold, before a byte of it is made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/synth.h"
#include "model/synth/knobs.h"

namespace tessera::synth {

// How the numbers of a tensor are distributed.
struct Fill {
  enum class Kind {
    normal,          // about normal, standard deviation a
    uniform,         // a to b
    uniform_signed,  // a to b with a random sign
    negative_decay,  // -a to -b, evenly on a logarithmic scale
    rope_factors,    // 1 for the first a elements, then "never turns"
  };
  Kind kind = Kind::normal;
  float a = 0;
  float b = 0;
};

struct LayoutTensor : SynthTensor {
  Fill fill;
};

using KeyValue = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::int32_t>,
                              std::vector<bool>, std::vector<float>, std::vector<std::string>>;

struct Key {
  std::string name;
  KeyValue value;
};

struct Layout {
  std::vector<Key> keys;
  std::vector<LayoutTensor> tensors;
  std::int64_t bytes = 0;  // of all tensors
};

enum class TypeMix { q4_k_m, q8_0, bf16, f32 };
Result<TypeMix> parse_type_mix(std::string_view name);

// What a matrix is to the quantiser: it keeps more bits where errors cost more.
enum class Use {
  float32,    // always F32
  embedding,  // the token table; the head too when that is tied
  output,
  plain,
  sensitive,  // more bits in the first, the last and every third layer between
};

// Collects tensors; the family functions below drive it.
class LayoutBuilder {
 public:
  LayoutBuilder(const Knobs& knobs, TypeMix mix) : knobs_(knobs), mix_(mix) {}

  const Knobs& knobs() const { return knobs_; }
  std::int64_t n_embd() const { return knobs_.integer("embedding_length"); }
  // Of matrices that write into the residual stream: all layers together add about half of what the
  // embedding brought, so that rounding is not amplified from layer to layer.
  float residual_gain() const;
  int n_layer() const { return static_cast<int>(knobs_.integer("block_count")); }

  // Tensors from here on belong to this layer: "blk.N." goes before their names.
  void begin_layer(int layer) { layer_ = layer; }
  void end_layers() { layer_ = -1; }

  // Columns, rows and optionally matrices; `gain` is the standard deviation of the product with a
  // vector of unit variance.
  void matrix(std::string_view name, Use use, std::vector<std::int64_t> ne, float gain);
  void vector(std::string_view name, std::vector<std::int64_t> ne, Fill fill);
  void norm(std::string_view name, std::int64_t n, float scale = 1.0f);

  // What families have alike.
  // embedding_scale: what the model multiplies an embedding by.
  void globals(float embedding_scale);
  struct AttentionWidths {
    std::int64_t q = 0;
    std::int64_t k = 0;    // 0: another layer's keys
    std::int64_t v = 0;    // 0: another layer's values, or the keys
    std::int64_t out = 0;  // that attn_output reads
  };
  void attention(const AttentionWidths& widths);
  void qk_norms(std::int64_t head_dim, float score_scale);
  void dense(std::string_view suffix, std::int64_t n_ff);
  // weight_scale: what the router multiplies the experts' weights by.
  struct ExpertSizes {
    std::int64_t n_expert = 0;
    std::int64_t n_ff = 0;
  };
  void experts(const ExpertSizes& sizes, float weight_scale = 1.0f);

  Result<Layout> take() &&;

 private:
  BlockType type_for(Use use, std::int64_t cols) const;
  bool more_bits() const;
  void add(std::string_view name, BlockType type, std::vector<std::int64_t> ne, Fill fill);

  const Knobs& knobs_;
  TypeMix mix_;
  int layer_ = -1;
  float stream_std_ = 1.0f;  // of the residual stream after the embedding
  Layout layout_;
  std::optional<Error> error_;
};

// The tensors of a family.
Status build_qwen35(LayoutBuilder& builder);  // and qwen35moe
Status build_laguna(LayoutBuilder& builder);
Status build_gemma4(LayoutBuilder& builder);  // and gemma4moe
Status build_qwen3(LayoutBuilder& builder);

// Keys and tensors of a whole file. Without `vocabulary` the tokenizer's keys are left out.
Result<Layout> make_layout(const SynthOptions& options, bool vocabulary);

}  // namespace tessera::synth
