#include <string_view>

#include "model/model.h"

namespace tessera {
namespace {

// Bounds what a vocabulary may allocate.
constexpr std::size_t kMaxTokens = std::size_t{1} << 21;
constexpr std::size_t kMaxMerges = std::size_t{1} << 23;

Result<std::vector<std::string>> read_strings(const gguf::Metadata& metadata, std::string_view key,
                                              std::size_t limit) {
  TESSERA_ASSIGN(auto views, metadata.get_string_array(key));
  if (views.size() > limit) {
    return Error::make(ErrorCode::invalid, "{} has {} entries; at most {} are supported", key,
                       views.size(), limit);
  }
  return std::vector<std::string>(views.begin(), views.end());
}

Status read_id(const gguf::Metadata& metadata, std::string_view key, std::size_t n_token,
               std::optional<std::int64_t>& id) {
  if (!metadata.contains(key)) return {};
  TESSERA_ASSIGN(std::int64_t value, metadata.get_i64(key));
  // Writers without such a token store -1, as a signed or an unsigned 32-bit number.
  if (value == -1 || value == 0xffffffffLL) return {};
  if (value < 0 || value >= static_cast<std::int64_t>(n_token)) {
    return Error::make(ErrorCode::invalid, "{} is {}; the vocabulary has ids 0 to {}", key, value,
                       static_cast<std::int64_t>(n_token) - 1);
  }
  id = value;
  return {};
}

Status read_types(const gguf::Metadata& metadata, text::TokenizerSpec& spec) {
  constexpr const char* kTypes = "tokenizer.ggml.token_type";
  constexpr const char* kScores = "tokenizer.ggml.scores";
  if (metadata.contains(kTypes)) {
    TESSERA_ASSIGN(auto types, metadata.get_per_layer_int(kTypes, spec.tokens.size()));
    for (std::int64_t type : types) {
      if (type < 0 || type > 6) {
        return Error::make(ErrorCode::invalid, "{} holds {}; types are 1 to 6", kTypes, type);
      }
      spec.token_types.push_back(static_cast<std::int32_t>(type));
    }
  }
  if (metadata.contains(kScores)) {
    TESSERA_ASSIGN(spec.scores, metadata.get_per_layer_f32(kScores, spec.tokens.size()));
  }
  return {};
}

Status read_ids(const gguf::Metadata& metadata, text::TokenizerSpec& spec) {
  const std::size_t n = spec.tokens.size();
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.bos_token_id", n, spec.bos_id));
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.eos_token_id", n, spec.eos_id));
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.eot_token_id", n, spec.eot_id));
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.unknown_token_id", n, spec.unknown_id));
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.padding_token_id", n, spec.padding_id));
  std::optional<std::int64_t> end_of_message;
  TESSERA_TRY(read_id(metadata, "tokenizer.ggml.eom_token_id", n, end_of_message));
  if (end_of_message) spec.extra_eog_ids.push_back(*end_of_message);
  return {};
}

}  // namespace

Result<text::TokenizerSpec> read_tokenizer_spec(const gguf::File& file) {
  const gguf::Metadata& metadata = file.metadata();
  text::TokenizerSpec spec;
  TESSERA_ASSIGN(spec.model, metadata.get_string("tokenizer.ggml.model"));
  TESSERA_ASSIGN(spec.pre_tokenizer, metadata.get_string_or("tokenizer.ggml.pre", ""));
  TESSERA_ASSIGN(spec.tokens, read_strings(metadata, "tokenizer.ggml.tokens", kMaxTokens));
  if (metadata.contains("tokenizer.ggml.merges")) {
    TESSERA_ASSIGN(spec.merges, read_strings(metadata, "tokenizer.ggml.merges", kMaxMerges));
  }
  TESSERA_TRY(read_types(metadata, spec));
  TESSERA_TRY(read_ids(metadata, spec));
  if (metadata.contains("tokenizer.ggml.add_bos_token")) {
    TESSERA_ASSIGN(bool add_bos, metadata.get_bool("tokenizer.ggml.add_bos_token"));
    spec.add_bos = add_bos;
  }
  if (spec.model == "gemma4") spec.add_bos = true;
  TESSERA_ASSIGN(spec.chat_template, metadata.get_string_or("tokenizer.chat_template", ""));
  return spec;
}

}  // namespace tessera
