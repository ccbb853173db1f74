#include "model/drafter.h"

#include <array>

#include "base/checked.h"
#include "model/readers/keys.h"

namespace tessera {
namespace {

constexpr int kMaxBlockRows = 256;
constexpr std::int64_t kTensorAlignment = 64;

// Layers of the target, counted from 1, in rising order.
Result<int> read_captures(const Keys& keys, const ModelSpec& target) {
  TESSERA_ASSIGN(const std::vector<std::int64_t> layers,
                 keys.metadata().get_int_array(keys.full("target_layers")));
  std::int64_t before = 0;
  for (const std::int64_t layer : layers) {
    if (layer <= before || layer > target.n_layer())
      return keys.invalid("target_layers", "{} after {}: give rising numbers from 1 to {}", layer,
                          before, target.n_layer());
    before = layer;
  }
  if (layers.empty()) return keys.invalid("target_layers", "it is empty: name at least one layer");
  return static_cast<int>(layers.size());
}

Status expect(const gguf::File& file, const std::string& name, std::int64_t cols,
              std::int64_t rows) {
  const gguf::TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr) return Error::make(ErrorCode::invalid, "{}: a drafter needs it", name);
  if (tensor->ne[0] == cols && tensor->rows() == rows) return {};
  return Error::make(ErrorCode::invalid, "{}: {} rows of {}, where {} of {} would be right", name,
                     tensor->rows(), tensor->ne[0], rows, cols);
}

struct LayerTensor {
  std::string_view stem;
  std::int64_t cols, rows;
};

Status check_tensors(const gguf::File& file, const DrafterSpec& spec) {
  const std::int64_t embd = spec.n_embd, ff = spec.n_ff;
  const std::int64_t query = std::int64_t{spec.n_head} * spec.key_dim,
                     output = std::int64_t{spec.n_head} * spec.value_dim;
  const std::int64_t key = std::int64_t{spec.n_kv_head} * spec.key_dim,
                     value = std::int64_t{spec.n_kv_head} * spec.value_dim;
  const auto of_layer = std::to_array<LayerTensor>({{"attn_norm", embd, 1},
                                                    {"attn_q", embd, query},
                                                    {"attn_k", embd, key},
                                                    {"attn_v", embd, value},
                                                    {"attn_q_norm", spec.key_dim, 1},
                                                    {"attn_k_norm", spec.key_dim, 1},
                                                    {"attn_output", output, embd},
                                                    {"ffn_norm", embd, 1},
                                                    {"ffn_gate", embd, ff},
                                                    {"ffn_up", embd, ff},
                                                    {"ffn_down", ff, embd}});
  TESSERA_TRY(expect(file, "fc.weight", spec.captures * embd, embd));
  TESSERA_TRY(expect(file, "enc.output_norm.weight", embd, 1));
  TESSERA_TRY(expect(file, "output_norm.weight", embd, 1));
  for (int l = 0; l < spec.n_layer; ++l)
    for (const LayerTensor& tensor : of_layer)
      TESSERA_TRY(
          expect(file, fmt::format("blk.{}.{}.weight", l, tensor.stem), tensor.cols, tensor.rows));
  return {};
}

}  // namespace

Result<DrafterSpec> read_drafter(const gguf::File& file, const ModelSpec& target) {
  TESSERA_ASSIGN(const std::string_view architecture,
                 file.metadata().get_string("general.architecture"));
  if (architecture != kDrafterArchitecture)
    return Error::make(ErrorCode::invalid,
                       "a model of architecture {}, and no drafter, which is {}", architecture,
                       kDrafterArchitecture);
  const Keys keys(file.metadata(), kDrafterArchitecture);
  DrafterSpec spec;
  TESSERA_ASSIGN(const std::string_view name, file.metadata().get_string_or("general.name", ""));
  spec.name = name;
  TESSERA_ASSIGN(spec.n_embd, keys.integer({"embedding_length"}, {}));
  if (spec.n_embd != target.n_embd)
    return keys.invalid("embedding_length", "{}: the model that it drafts for has {}", spec.n_embd,
                        target.n_embd);
  TESSERA_ASSIGN(spec.n_layer, keys.integer({"block_count"}, {.max = kMaxBlocks}));
  TESSERA_ASSIGN(spec.n_ff, keys.integer({"feed_forward_length"}, {}));
  TESSERA_ASSIGN(spec.n_head, keys.integer({"attention.head_count"}, {.max = kMaxHeads}));
  TESSERA_ASSIGN(spec.n_kv_head, keys.integer({"attention.head_count_kv"}, {.max = kMaxHeads}));
  const IntRange head_dims{.max = kMaxHeadDim};
  TESSERA_ASSIGN(spec.key_dim, keys.integer({"attention.key_length"}, head_dims));
  TESSERA_ASSIGN(spec.value_dim, keys.integer({"attention.value_length"}, head_dims));
  TESSERA_ASSIGN(spec.block_rows,
                 keys.integer_or({"block_size"}, 16, {.min = 2, .max = kMaxBlockRows}));
  TESSERA_ASSIGN(spec.captures, read_captures(keys, target));
  TESSERA_TRY(check_tensors(file, spec));
  for (const gguf::TensorInfo& tensor : file.tensors())
    spec.weight_bytes += round_up(static_cast<std::int64_t>(tensor.bytes), kTensorAlignment);
  return spec;
}

}  // namespace tessera
