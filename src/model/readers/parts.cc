#include "model/readers/parts.h"

#include <algorithm>

#include "text/vocabulary.h"

namespace tessera {
namespace {

constexpr std::int32_t kUnusedTokenType = 5;

Result<int> read_head_rows(const gguf::File& file, const Keys& keys) {
  const gguf::TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return Error::make(ErrorCode::invalid, "tensor token_embd.weight is missing");
  }
  const std::int64_t rows = embedding->ne[1];
  if (rows > kMaxVocab) {
    return Error::make(ErrorCode::invalid,
                       "token_embd.weight has {} rows; at most {} are supported", rows, kMaxVocab);
  }
  TESSERA_ASSIGN(int declared,
                 keys.integer_or({"vocab_size"}, static_cast<int>(rows), {1, kMaxVocab}));
  if (declared > rows) {
    return keys.invalid("vocab_size", "{} is more than the {} rows of token_embd.weight", declared,
                        rows);
  }
  return static_cast<int>(rows);
}

Result<int> read_token_count(const Keys& keys, int n_vocab) {
  const gguf::Value* tokens = keys.metadata().find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return keys.integer_or({"vocab_size"}, n_vocab, {1, kMaxVocab});
  if (tokens->size() < 1 || tokens->size() > static_cast<std::uint64_t>(n_vocab)) {
    return Error::make(ErrorCode::invalid,
                       "tokenizer.ggml.tokens has {} entries; token_embd.weight has {} rows",
                       tokens->size(), n_vocab);
  }
  return static_cast<int>(tokens->size());
}

// Ids that must never be chosen: the file's own list, and filler rows, by their type or their name.
Status read_suppressed(const gguf::Metadata& metadata, ModelSpec& spec) {
  constexpr const char* kList = "tokenizer.ggml.suppress_tokens";
  if (metadata.contains(kList)) {
    TESSERA_ASSIGN(auto ids, metadata.get_int_array(kList));
    for (std::int64_t id : ids) {
      if (id < 0 || id >= spec.n_vocab) {
        return Error::make(ErrorCode::invalid, "{} holds {}; ids are 0 to {}", kList, id,
                           spec.n_vocab - 1);
      }
      spec.suppressed_tokens.push_back(static_cast<TokenId>(id));
    }
  }
  constexpr const char* kTypes = "tokenizer.ggml.token_type";
  if (metadata.contains(kTypes)) {
    TESSERA_ASSIGN(auto types, metadata.get_int_array(kTypes));
    const std::size_t n = std::min(types.size(), static_cast<std::size_t>(spec.n_token));
    for (std::size_t id = 0; id < n; ++id) {
      if (types[id] == kUnusedTokenType) {
        spec.suppressed_tokens.push_back(static_cast<TokenId>(id));
      }
    }
  }
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  if (metadata.contains(kTokens)) {
    TESSERA_ASSIGN(auto tokens, metadata.get_string_array(kTokens));
    for (std::size_t id = 0; id < tokens.size(); ++id)
      if (text::is_filler(tokens[id], static_cast<TokenId>(id)))
        spec.suppressed_tokens.push_back(static_cast<TokenId>(id));
  }
  std::ranges::sort(spec.suppressed_tokens);
  // std::ranges::unique does not compile with clang 14.
  spec.suppressed_tokens.erase(
      std::unique(spec.suppressed_tokens.begin(), spec.suppressed_tokens.end()),
      spec.suppressed_tokens.end());
  return {};
}

}  // namespace

Status read_globals(const gguf::File& file, const Keys& keys, FamilyModel& model) {
  ModelSpec& spec = model.spec;
  const gguf::Metadata& metadata = keys.metadata();
  TESSERA_ASSIGN(std::string_view architecture, metadata.get_string("general.architecture"));
  TESSERA_ASSIGN(std::string_view name, metadata.get_string_or("general.name", architecture));
  spec.architecture = architecture;
  spec.name = name;
  TESSERA_ASSIGN(spec.n_embd, keys.integer({"embedding_length"}, {1, kMaxWidth}));
  TESSERA_ASSIGN(spec.context_length, keys.integer({"context_length"}, {1, kMaxContext}));
  TESSERA_ASSIGN(spec.norm_eps, keys.positive({"attention.layer_norm_rms_epsilon"}));
  TESSERA_ASSIGN(spec.n_vocab, read_head_rows(file, keys));
  TESSERA_ASSIGN(spec.n_token, read_token_count(keys, spec.n_vocab));
  TESSERA_TRY(read_suppressed(metadata, spec));
  spec.tied_head = file.find_tensor("output.weight") == nullptr;

  const auto global = [&](TensorRole role, const char* tensor, std::int64_t rows) {
    model.tensors.push_back({role, -1, 1, rows, spec.n_embd, {{tensor, 0, rows}}});
  };
  global(TensorRole::token_embd, "token_embd.weight", spec.n_vocab);
  global(TensorRole::output_norm, "output_norm.weight", 1);
  if (!spec.tied_head) global(TensorRole::output, "output.weight", spec.n_vocab);
  return {};
}

ExpectedTensor& LayerTensors::add(TensorRole role, std::int64_t rows, std::int64_t cols) {
  return model_.tensors.emplace_back(ExpectedTensor{role, layer_, 1, rows, cols, {}});
}

void LayerTensors::vector(TensorRole role, std::string_view stem, std::int64_t n,
                          std::initializer_list<std::string_view> aliases) {
  matrix(role, stem, 1, n, aliases);
}

void LayerTensors::matrix(TensorRole role, std::string_view stem, std::int64_t rows,
                          std::int64_t cols, std::initializer_list<std::string_view> aliases) {
  ExpectedTensor& tensor = add(role, rows, cols);
  tensor.sources.push_back({name(stem), 0, rows});
  for (std::string_view alias : aliases) tensor.sources.push_back({name(alias), 0, rows});
}

void LayerTensors::attention(const AttentionSpec& spec, std::int64_t q_rows, std::int64_t n_embd) {
  const bool own_kv = spec.kv_source < 0;
  const std::int64_t k_rows = own_kv ? std::int64_t{spec.n_kv_head} * spec.head_dim_k : 0;
  const std::int64_t v_rows =
      own_kv && !spec.value_is_key ? std::int64_t{spec.n_kv_head} * spec.head_dim_v : 0;
  const std::int64_t fused_rows = q_rows + k_rows + v_rows;
  std::int64_t first_row = 0;
  const auto part = [&](TensorRole role, std::string_view stem, std::int64_t rows) {
    if (rows == 0) return;
    ExpectedTensor& tensor = add(role, rows, n_embd);
    tensor.sources.push_back({name(stem), 0, rows});
    tensor.sources.push_back({name("attn_qkv.weight"), first_row, fused_rows});
    first_row += rows;
  };
  part(TensorRole::attn_q, "attn_q.weight", q_rows);
  part(TensorRole::attn_k, "attn_k.weight", k_rows);
  part(TensorRole::attn_v, "attn_v.weight", v_rows);
  matrix(TensorRole::attn_output, "attn_output.weight", n_embd,
         std::int64_t{spec.n_head} * spec.head_dim_v);
  if (!spec.qk_norm) return;
  vector(TensorRole::attn_q_norm, "attn_q_norm.weight", spec.head_dim_k);
  if (own_kv) vector(TensorRole::attn_k_norm, "attn_k_norm.weight", spec.head_dim_k);
}

void LayerTensors::dense(const DenseFfnSpec& spec, std::int64_t n_embd, std::string_view suffix) {
  matrix(TensorRole::dense_gate, fmt::format("ffn_gate{}.weight", suffix), spec.n_ff, n_embd);
  matrix(TensorRole::dense_up, fmt::format("ffn_up{}.weight", suffix), spec.n_ff, n_embd);
  matrix(TensorRole::dense_down, fmt::format("ffn_down{}.weight", suffix), n_embd, spec.n_ff);
}

void LayerTensors::experts(const MoeSpec& spec, std::int64_t n_embd) {
  const std::string fused = name("ffn_gate_up_exps.weight");
  const std::int64_t n_ff = spec.n_ff;
  ExpectedTensor& gate = add(TensorRole::moe_gate, n_ff, n_embd);
  gate.matrices = spec.n_expert;
  gate.sources = {{name("ffn_gate_exps.weight"), 0, n_ff}, {fused, 0, 2 * n_ff}};
  ExpectedTensor& up = add(TensorRole::moe_up, n_ff, n_embd);
  up.matrices = spec.n_expert;
  up.sources = {{name("ffn_up_exps.weight"), 0, n_ff}, {fused, n_ff, 2 * n_ff}};
  ExpectedTensor& down = add(TensorRole::moe_down, n_embd, n_ff);
  down.matrices = spec.n_expert;
  down.sources = {{name("ffn_down_exps.weight"), 0, n_embd}};
}

Status check_attention(const Keys& keys, const AttentionSpec& spec, int layer) {
  if (spec.n_head % spec.n_kv_head != 0) {
    return keys.invalid("attention.head_count_kv",
                        "layer {} has {} query heads, which {} KV heads do not divide", layer,
                        spec.n_head, spec.n_kv_head);
  }
  if (spec.head_dim_k % 2 != 0) {
    return keys.invalid("attention.key_length", "{} is odd", spec.head_dim_k);
  }
  if (spec.head_dim_v % 2 != 0) {
    return keys.invalid("attention.value_length", "{} is odd", spec.head_dim_v);
  }
  return {};
}

Status check_moe(const Keys& keys, const MoeSpec& spec) {
  if (spec.n_used > spec.n_expert) {
    return keys.invalid("expert_used_count", "{} of {} experts", spec.n_used, spec.n_expert);
  }
  return {};
}

}  // namespace tessera
