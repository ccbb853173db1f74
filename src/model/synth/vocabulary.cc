#include "model/synth/vocabulary.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "model/synth/merges.h"

namespace tessera::synth {
namespace {

constexpr std::size_t kMaxTokens = std::size_t{1} << 20;

struct Special {
  std::string_view text;
  Kind kind;
};

// In the order of their ids, from the end-of-text token on. qwen3 has the first 26.
constexpr Special kQwenSpecials[] = {
    {"<|endoftext|>", Kind::control},
    {"<|im_start|>", Kind::control},
    {"<|im_end|>", Kind::control},
    {"<|object_ref_start|>", Kind::control},
    {"<|object_ref_end|>", Kind::control},
    {"<|box_start|>", Kind::control},
    {"<|box_end|>", Kind::control},
    {"<|quad_start|>", Kind::control},
    {"<|quad_end|>", Kind::control},
    {"<|vision_start|>", Kind::control},
    {"<|vision_end|>", Kind::control},
    {"<|vision_pad|>", Kind::control},
    {"<|image_pad|>", Kind::control},
    {"<|video_pad|>", Kind::control},
    {"<tool_call>", Kind::user},
    {"</tool_call>", Kind::user},
    {"<|fim_prefix|>", Kind::control},
    {"<|fim_middle|>", Kind::control},
    {"<|fim_suffix|>", Kind::control},
    {"<|fim_pad|>", Kind::control},
    {"<|repo_name|>", Kind::control},
    {"<|file_sep|>", Kind::control},
    {"<tool_response>", Kind::user},
    {"</tool_response>", Kind::user},
    {"<think>", Kind::user},
    {"</think>", Kind::user},
    {"<|audio_start|>", Kind::control},
    {"<|audio_end|>", Kind::control},
    {"<tts_pad>", Kind::control},
    {"<tts_text_bos>", Kind::control},
    {"<tts_text_eod>", Kind::control},
    {"<tts_text_bos_single>", Kind::control},
    {"<|audio_pad|>", Kind::control},
};
constexpr std::size_t kQwen3Specials = 26;

struct Placed {
  std::size_t id;
  Special special;
};

// Unnamed ids between these are reserved.
constexpr std::size_t kLagunaReserved = 32;
constexpr Placed kLagunaSpecials[] = {
    {0, {"<unk>", Kind::unknown}},         {2, {"〈|EOS|〉", Kind::control}},
    {8, {"<sep>", Kind::control}},         {9, {"<pad>", Kind::control}},
    {12, {"<mask>", Kind::control}},       {18, {"<think>", Kind::user}},
    {19, {"</think>", Kind::user}},        {23, {"<assistant>", Kind::control}},
    {24, {"</assistant>", Kind::control}}, {25, {"<tool_call>", Kind::user}},
    {26, {"</tool_call>", Kind::user}},
};

constexpr std::size_t kGemmaReserved = 107;
constexpr std::size_t kGemmaNewlineRuns = 8;
constexpr Placed kGemmaSpecials[] = {
    {0, {"<pad>", Kind::control}},          {1, {"<eos>", Kind::control}},
    {2, {"<bos>", Kind::control}},          {3, {"<unk>", Kind::unknown}},
    {4, {"<mask>", Kind::control}},         {46, {"<|tool>", Kind::user}},
    {47, {"<tool|>", Kind::user}},          {48, {"<|tool_call>", Kind::user}},
    {49, {"<tool_call|>", Kind::user}},     {50, {"<|tool_response>", Kind::user}},
    {51, {"<tool_response|>", Kind::user}}, {52, {"<|\"|>", Kind::user}},
    {98, {"<|think|>", Kind::control}},     {100, {"<|channel>", Kind::user}},
    {101, {"<channel|>", Kind::user}},      {105, {"<|turn>", Kind::control}},
    {106, {"<turn|>", Kind::control}},
};

std::string utf8(unsigned code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The printable stand-ins for bytes of byte-level BPE: printable Latin-1 characters stand for
// themselves, the other bytes for U+0100 onwards. Ids follow the stand-ins' order, as published.
void add_byte_symbols(MergeTable& table) {
  const auto printable = [](unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (printable(byte)) table.add_token(utf8(byte), Kind::normal);
  }
  unsigned stand_in = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!printable(byte)) table.add_token(utf8(stand_in++), Kind::normal);
  }
}

template <std::size_t n>
void add_reserved(MergeTable& table, const Placed (&placed)[n], std::size_t count) {
  std::size_t next = 0;
  for (std::size_t id = 0; id < count; ++id) {
    if (next < n && placed[next].id == id) {
      table.add_token(std::string(placed[next].special.text), placed[next].special.kind);
      ++next;
    } else {
      table.add_token(fmt::format("<reserved_{}>", id), Kind::unused);
    }
  }
}

Status need_room(std::size_t n_token, std::size_t least) {
  if (n_token >= least && n_token <= kMaxTokens) return {};
  return Error::make(ErrorCode::invalid, "vocab_size is {}; it must be between {} and {}", n_token,
                     least, kMaxTokens);
}

struct SpecialIds {
  std::optional<std::size_t> bos, eos, eot, unknown, padding, separator, mask;
  bool add_bos = false;
};

void add_id(std::vector<Key>& keys, const char* name, std::optional<std::size_t> id) {
  if (id) keys.push_back({name, static_cast<std::uint32_t>(*id)});
}

void put_keys(std::vector<Key>& keys, const char* model, const char* pre, MergeTable& table,
              const SpecialIds& ids) {
  keys.push_back({"tokenizer.ggml.model", std::string(model)});
  if (*pre != 0) keys.push_back({"tokenizer.ggml.pre", std::string(pre)});
  keys.push_back({"tokenizer.ggml.tokens", std::move(table.tokens())});
  keys.push_back({"tokenizer.ggml.token_type", std::move(table.kinds())});
  keys.push_back({"tokenizer.ggml.merges", std::move(table.merges())});
  add_id(keys, "tokenizer.ggml.bos_token_id", ids.bos);
  add_id(keys, "tokenizer.ggml.eos_token_id", ids.eos);
  add_id(keys, "tokenizer.ggml.eot_token_id", ids.eot);
  add_id(keys, "tokenizer.ggml.unknown_token_id", ids.unknown);
  add_id(keys, "tokenizer.ggml.padding_token_id", ids.padding);
  add_id(keys, "tokenizer.ggml.seperator_token_id", ids.separator);  // spelled so in the format
  add_id(keys, "tokenizer.ggml.mask_token_id", ids.mask);
  keys.push_back({"tokenizer.ggml.add_bos_token", ids.add_bos});
}

Status add_qwen(std::vector<Key>& keys, std::size_t n_token, bool qwen3) {
  const std::span<const Special> specials =
      qwen3 ? std::span(kQwenSpecials).first(kQwen3Specials) : std::span(kQwenSpecials);
  // Filler rows in the proportion of the published vocabularies.
  const std::size_t fillers =
      qwen3 ? (n_token * 267 + 75968) / 151936 : (n_token * 243 + 124160) / 248320;
  TESSERA_TRY(need_room(n_token, 256 + specials.size() + fillers));
  MergeTable table("Ġ");
  add_byte_symbols(table);
  const std::size_t first = n_token - fillers - specials.size();
  table.grow(first);
  for (const Special& special : specials) {
    table.add_token(std::string(special.text), special.kind);
  }
  while (table.size() < n_token) {
    table.add_token(fmt::format("[PAD{}]", table.size()), Kind::unused);
  }
  SpecialIds ids;
  ids.bos = ids.padding = first;
  ids.eos = first + 2;
  put_keys(keys, "gpt2", qwen3 ? "qwen2" : "qwen35", table, ids);
  return {};
}

Status add_laguna(std::vector<Key>& keys, std::size_t n_token) {
  TESSERA_TRY(need_room(n_token, kLagunaReserved + 256));
  MergeTable table("Ġ");
  add_reserved(table, kLagunaSpecials, kLagunaReserved);
  add_byte_symbols(table);
  table.grow(n_token);
  SpecialIds ids;
  ids.bos = ids.eos = 2;
  ids.eot = 24;
  ids.unknown = 0;
  ids.padding = 9;
  ids.separator = 8;
  ids.mask = 12;
  ids.add_bos = true;
  put_keys(keys, "gpt2", "laguna", table, ids);
  return {};
}

Status add_gemma4(std::vector<Key>& keys, std::size_t n_token) {
  constexpr std::size_t kPrintable = 94;
  TESSERA_TRY(need_room(n_token, kGemmaReserved + kGemmaNewlineRuns + 256 + 1 + kPrintable));
  MergeTable table("▁");
  add_reserved(table, kGemmaSpecials, kGemmaReserved);
  for (std::size_t run = 1; run <= kGemmaNewlineRuns; ++run) {
    table.add_token(std::string(run, '\n'), Kind::normal);
  }
  for (int byte = 0; byte < 256; ++byte) {
    table.add_token(fmt::format("<0x{:02X}>", byte), Kind::byte);
  }
  table.add_token("▁", Kind::normal);
  for (char c = 33; c < 127; ++c) table.add_token({c}, Kind::normal);
  table.grow(n_token);
  const std::vector<float> scores(n_token, -1000.0f);
  SpecialIds ids;
  ids.bos = 2;
  ids.eos = 106;
  ids.unknown = 3;
  ids.padding = 0;
  ids.mask = 4;
  ids.add_bos = true;
  put_keys(keys, "gemma4", "", table, ids);
  keys.push_back({"tokenizer.ggml.scores", scores});
  keys.push_back({"tokenizer.ggml.add_space_prefix", false});
  return {};
}

}  // namespace

Status add_vocabulary_keys(const Knobs& knobs, std::vector<Key>& keys) {
  const auto n_token = static_cast<std::size_t>(knobs.integer("vocab_size"));
  const std::string& architecture = knobs.architecture();
  if (architecture == "gemma4") {
    TESSERA_TRY(add_gemma4(keys, n_token));
  } else if (architecture == "laguna") {
    TESSERA_TRY(add_laguna(keys, n_token));
  } else {
    TESSERA_TRY(add_qwen(keys, n_token, architecture == "qwen3"));
  }
  keys.push_back({"tokenizer.chat_template", std::string(chat_template(architecture))});
  return {};
}

}  // namespace tessera::synth
