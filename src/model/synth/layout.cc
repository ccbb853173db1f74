#include "model/synth/layout.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/checked.h"
#include "model/synth/vocabulary.h"

namespace tessera::synth {
namespace {

constexpr std::int64_t kMaxLayers = 1024;
constexpr float kLogitStd = 2.5f;
constexpr float kScoreStd = 1.8f;  // of attention scores before the softmax

bool fits(BlockType type, std::int64_t cols) {
  return cols % block_format(type).elems == 0;
}

// What the quantiser falls back to where a row is no whole number of blocks.
BlockType fitting(BlockType type, std::int64_t cols) {
  if (!fits(type, cols) && type == BlockType::Q4_K) type = BlockType::Q5_0;
  if (!fits(type, cols) && type == BlockType::Q6_K) type = BlockType::Q8_0;
  return fits(type, cols) ? type : BlockType::F16;
}

std::optional<std::int64_t> tensor_bytes(BlockType type, const std::vector<std::int64_t>& ne) {
  std::int64_t bytes = row_bytes(type, ne[0]);
  for (std::size_t i = 1; i < ne.size(); ++i) {
    const auto product = checked_mul(bytes, ne[i]);
    if (!product) return std::nullopt;
    bytes = *product;
  }
  return bytes;
}

std::uint32_t file_type(TypeMix mix) {
  switch (mix) {
    case TypeMix::q4_k_m:
      return 15;
    case TypeMix::q8_0:
      return 7;
    case TypeMix::bf16:
      return 32;
    case TypeMix::f32:
      return 0;
  }
  return 0;
}

KeyValue key_value(const Knobs& knobs, const KnobDef& def) {
  const KnobValue& value = knobs.value(def.name);
  if (def.kind == KnobKind::integer) {
    return static_cast<std::uint32_t>(std::get<std::int64_t>(value));
  }
  if (def.kind == KnobKind::real) return static_cast<float>(std::get<double>(value));
  if (def.kind == KnobKind::flag) return std::get<bool>(value);
  if (def.kind == KnobKind::text) return std::get<std::string>(value);
  // A list of layers; the sections of the rotation are the one list that is not.
  const bool per_layer = def.name != "rope.dimension_sections";
  const int n = per_layer ? static_cast<int>(knobs.integer("block_count"))
                          : static_cast<int>(std::get<std::vector<std::int64_t>>(value).size());
  if (def.kind == KnobKind::flags) {
    std::vector<bool> flags;
    for (int i = 0; i < n; ++i) flags.push_back(knobs.at(def.name, i) != 0);
    return flags;
  }
  const auto& list = std::get<std::vector<std::int64_t>>(value);
  if (per_layer && list.size() == 1) return static_cast<std::uint32_t>(list[0]);
  std::vector<std::int32_t> integers;
  for (int i = 0; i < n; ++i) integers.push_back(static_cast<std::int32_t>(knobs.at(def.name, i)));
  return integers;
}

void add_keys(const Knobs& knobs, TypeMix mix, std::vector<Key>& keys) {
  keys.push_back({"general.architecture", knobs.architecture()});
  keys.push_back({"general.type", std::string("model")});
  keys.push_back({"general.file_type", file_type(mix)});
  keys.push_back({"general.quantization_version", std::uint32_t{2}});
  for (const KnobDef& def : knobs.family().knobs) {
    if (!knobs.has(def.name) || def.place == KnobPlace::generator) continue;
    const bool full = def.place == KnobPlace::full_key;
    const std::string prefix = full ? "" : knobs.architecture() + ".";
    keys.push_back({prefix + std::string(def.name), key_value(knobs, def)});
  }
}

Status build_tensors(LayoutBuilder& builder) {
  const std::string& architecture = builder.knobs().architecture();
  if (architecture == "laguna") return build_laguna(builder);
  if (architecture == "gemma4") return build_gemma4(builder);
  if (architecture == "qwen3") return build_qwen3(builder);
  return build_qwen35(builder);
}

}  // namespace

Result<TypeMix> parse_type_mix(std::string_view name) {
  if (name == "q4_k_m") return TypeMix::q4_k_m;
  if (name == "q8_0") return TypeMix::q8_0;
  if (name == "bf16") return TypeMix::bf16;
  if (name == "f32") return TypeMix::f32;
  return Error::make(ErrorCode::invalid,
                     "unknown types \"{}\"; there are q4_k_m, q8_0, bf16 and f32", name);
}

bool LayoutBuilder::more_bits() const {
  const int n = n_layer() - static_cast<int>(knobs_.integer_or("nextn_predict_layers", 0));
  return layer_ < n / 8 || layer_ >= 7 * n / 8 || (layer_ - n / 8) % 3 == 2;
}

BlockType LayoutBuilder::type_for(Use use, std::int64_t cols) const {
  if (use == Use::float32 || mix_ == TypeMix::f32) return BlockType::F32;
  if (mix_ == TypeMix::bf16) return BlockType::BF16;
  if (mix_ == TypeMix::q8_0) return fitting(BlockType::Q8_0, cols);
  const bool more = use == Use::output || (use == Use::sensitive && more_bits()) ||
                    (use == Use::embedding && knobs_.flag("tied_head"));
  return fitting(more ? BlockType::Q6_K : BlockType::Q4_K, cols);
}

void LayoutBuilder::add(std::string_view name, BlockType type, std::vector<std::int64_t> ne,
                        Fill fill) {
  LayoutTensor tensor;
  tensor.name = layer_ < 0 ? std::string(name) : fmt::format("blk.{}.{}", layer_, name);
  tensor.type = type;
  tensor.ne = std::move(ne);
  tensor.fill = fill;
  if (error_) return;
  for (std::int64_t extent : tensor.ne) {
    if (extent < 1) {
      error_ = Error::make(ErrorCode::invalid, "tensor {} would have an extent of {}", tensor.name,
                           extent);
      return;
    }
  }
  const auto bytes = tensor_bytes(type, tensor.ne);
  const auto total = bytes ? checked_add(layout_.bytes, *bytes) : std::nullopt;
  if (!total) {
    error_ = Error::make(ErrorCode::invalid, "tensor {} would be too large", tensor.name);
    return;
  }
  tensor.bytes = *bytes;
  layout_.bytes = *total;
  layout_.tensors.push_back(std::move(tensor));
}

float LayoutBuilder::residual_gain() const {
  return stream_std_ / std::sqrt(8.0f * static_cast<float>(n_layer()));
}

void LayoutBuilder::matrix(std::string_view name, Use use, std::vector<std::int64_t> ne,
                           float gain) {
  const std::int64_t cols = std::max<std::int64_t>(ne[0], 1);
  // Within what a block's scale can express.
  const float stddev = std::clamp(gain / std::sqrt(static_cast<float>(cols)), 1e-4f, 1e2f);
  add(name, type_for(use, cols), std::move(ne), {Fill::Kind::normal, stddev, 0});
}

void LayoutBuilder::vector(std::string_view name, std::vector<std::int64_t> ne, Fill fill) {
  add(name, BlockType::F32, std::move(ne), fill);
}

void LayoutBuilder::norm(std::string_view name, std::int64_t n, float scale) {
  vector(name, {n}, {Fill::Kind::uniform, 0.5f * scale, 1.5f * scale});
}

void LayoutBuilder::globals(float embedding_scale) {
  const std::int64_t n_vocab = knobs_.integer("vocab_size");
  const float width = std::sqrt(static_cast<float>(n_embd()));
  if (!knobs_.flag("tied_head")) {
    matrix("token_embd.weight", Use::embedding, {n_embd(), n_vocab}, width / embedding_scale);
    norm("output_norm.weight", n_embd());
    matrix("output.weight", Use::output, {n_embd(), n_vocab}, kLogitStd);
    return;
  }
  matrix("token_embd.weight", Use::embedding, {n_embd(), n_vocab}, kLogitStd);
  stream_std_ = kLogitStd / width * embedding_scale;
  // The residual still holds the embedding of the token just read; without the signs a tied head
  // would answer with that token for ever.
  vector("output_norm.weight", {n_embd()}, {Fill::Kind::uniform_signed, 0.5f, 1.5f});
}

void LayoutBuilder::attention(const AttentionWidths& widths) {
  const auto& [q, k, v, out] = widths;
  if (knobs_.flag("fused_qkv")) {
    matrix("attn_qkv.weight", Use::sensitive, {n_embd(), q + k + v}, 1.0f);
  } else {
    matrix("attn_q.weight", Use::plain, {n_embd(), q}, 1.0f);
    if (k > 0) matrix("attn_k.weight", Use::plain, {n_embd(), k}, 1.0f);
    if (v > 0) matrix("attn_v.weight", Use::sensitive, {n_embd(), v}, 1.0f);
  }
  matrix("attn_output.weight", Use::plain, {out, n_embd()}, residual_gain());
}

void LayoutBuilder::qk_norms(std::int64_t head_dim, float score_scale) {
  constexpr float kMeanSquare = 13.0f / 12;  // of a weight that is uniform from 0.5 to 1.5
  const float plain = std::sqrt(static_cast<float>(head_dim)) * score_scale * kMeanSquare;
  const float scale = std::sqrt(kScoreStd / plain);
  norm("attn_q_norm.weight", head_dim, scale);
  norm("attn_k_norm.weight", head_dim, scale);
}

void LayoutBuilder::dense(std::string_view suffix, std::int64_t n_ff) {
  matrix(fmt::format("ffn_gate{}.weight", suffix), Use::plain, {n_embd(), n_ff}, 1.0f);
  matrix(fmt::format("ffn_up{}.weight", suffix), Use::plain, {n_embd(), n_ff}, 1.0f);
  matrix(fmt::format("ffn_down{}.weight", suffix), Use::sensitive, {n_ff, n_embd()},
         residual_gain());
}

void LayoutBuilder::experts(const ExpertSizes& sizes, float weight_scale) {
  const auto& [n_expert, n_ff] = sizes;
  if (knobs_.flag("fused_gate_up")) {
    matrix("ffn_gate_up_exps.weight", Use::plain, {n_embd(), 2 * n_ff, n_expert}, 1.0f);
  } else {
    matrix("ffn_gate_exps.weight", Use::plain, {n_embd(), n_ff, n_expert}, 1.0f);
    matrix("ffn_up_exps.weight", Use::plain, {n_embd(), n_ff, n_expert}, 1.0f);
  }
  matrix("ffn_down_exps.weight", Use::sensitive, {n_ff, n_embd(), n_expert},
         residual_gain() / weight_scale);
}

Result<Layout> LayoutBuilder::take() && {
  if (error_) return *std::move(error_);
  return std::move(layout_);
}

Result<Layout> make_layout(const SynthOptions& options, bool vocabulary) {
  TESSERA_ASSIGN(TypeMix mix, parse_type_mix(options.types));
  TESSERA_ASSIGN(Knobs knobs, Knobs::make(options.family, options.preset, options.overrides));
  if (knobs.integer("block_count") < 1 || knobs.integer("block_count") > kMaxLayers) {
    return Error::make(ErrorCode::invalid, "block_count is {}; it must be between 1 and {}",
                       knobs.integer("block_count"), kMaxLayers);
  }
  LayoutBuilder builder(knobs, mix);
  TESSERA_TRY(build_tensors(builder));
  TESSERA_ASSIGN(Layout layout, std::move(builder).take());
  add_keys(knobs, mix, layout.keys);
  if (vocabulary) TESSERA_TRY(add_vocabulary_keys(knobs, layout.keys));
  return layout;
}

}  // namespace tessera::synth
