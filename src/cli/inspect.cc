// tessera inspect: a file as it is, without judging whether it can be run.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/gguf.h"
#include "plan/plan.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using gguf::Value;
using gguf::ValueType;

constexpr std::uint64_t kShownElements = 8;
constexpr std::size_t kShownText = 60;

template <typename T>
Json json_of(const Result<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// The shortest decimal number that is this float, not this float as a double.
double decimal(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

Json scalar_json(const Value& value) {
  if (value.element_type() == ValueType::string) {
    const auto text = value.as_string();
    return text ? Json(std::string(*text)) : Json(nullptr);
  }
  if (value.element_type() == ValueType::boolean) return json_of(value.as_bool());
  if (gguf::is_float(value.element_type())) {
    const Result<float> number = value.as_f32();
    return number ? Json(decimal(*number)) : Json(nullptr);
  }
  if (value.element_type() == ValueType::u64) return json_of(value.as_u64());
  return json_of(value.as_i64());
}

Json array_json(const Value& value) {
  if (value.element_type() == ValueType::string) {
    const auto texts = value.as_strings();
    Json out = Json::array();
    if (texts)
      for (const std::string_view text : *texts) out.push_back(std::string(text));
    return out;
  }
  if (value.element_type() == ValueType::boolean) {
    const auto flags = value.as_bools();
    Json out = Json::array();
    if (flags)
      for (const bool flag : *flags) out.push_back(flag);
    return out;
  }
  if (!gguf::is_float(value.element_type())) return json_of(value.as_ints());
  const auto numbers = value.as_floats();
  Json out = Json::array();
  if (numbers)
    for (const float number : *numbers) out.push_back(decimal(number));
  return out;
}

// One line for a person: long texts and arrays are cut.
std::string short_text(const Value& value) {
  if (!value.is_array()) {
    std::string text = json_text(scalar_json(value), -1);
    if (text.size() > kShownText)
      text = fmt::format("{}... ({} bytes)", text.substr(0, kShownText), text.size());
    return text;
  }
  if (value.size() > 1024) return value.describe();
  const Json all = array_json(value);
  std::string text = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), kShownElements); ++i)
    text += (i > 0 ? ", " : "") + json_text(all[i], -1);
  return text + (all.size() > kShownElements ? fmt::format(", ...] ({})", value.describe()) : "]");
}

std::string shape_text(const gguf::TensorInfo& tensor) {
  int dims = 4;
  while (dims > 1 && tensor.ne[static_cast<std::size_t>(dims - 1)] == 1) --dims;
  std::string text;
  for (int i = 0; i < dims; ++i)
    text += fmt::format("{}{}", i > 0 ? " x " : "", tensor.ne[static_cast<std::size_t>(i)]);
  return text;
}

Json file_json(const gguf::File& file) {
  Json metadata = Json::object();
  for (const auto& entry : file.metadata().entries())
    metadata[entry.key] =
        entry.value.is_array() ? array_json(entry.value) : scalar_json(entry.value);
  Json tensors = Json::array();
  for (const gguf::TensorInfo& tensor : file.tensors())
    tensors.push_back({{"name", tensor.name},
                       {"type", block_type_name(tensor.type)},
                       {"shape", tensor.ne},
                       {"bytes", tensor.bytes},
                       {"shard", tensor.shard}});
  return {{"path", file.path()},
          {"version", file.version()},
          {"shards", file.shard_count()},
          {"bytes", file.file_bytes()},
          {"metadata", std::move(metadata)},
          {"tensors", std::move(tensors)}};
}

void print_file(const gguf::File& file) {
  print_out("{}: GGUF version {}, {} in {} file{}, {} keys, {} tensors\n\n", file.path(),
            file.version(), format_bytes(static_cast<std::int64_t>(file.file_bytes())),
            file.shard_count(), file.shard_count() == 1 ? "" : "s",
            file.metadata().entries().size(), file.tensors().size());
  for (const auto& entry : file.metadata().entries())
    print_out("{:<48} {}\n", entry.key, short_text(entry.value));
  if (!file.tensors().empty()) print_out("\n");
  for (const gguf::TensorInfo& tensor : file.tensors())
    print_out("{:<48} {:<8}{:<24}{:>12}\n", tensor.name, block_type_name(tensor.type),
              shape_text(tensor), format_bytes(static_cast<std::int64_t>(tensor.bytes)));
}

Status inspect(const Config& config) {
  TESSERA_ASSIGN(const gguf::File file,
                 gguf::File::open(config.arguments().front(), {.allow_unknown_types = true}));
  if (config.flag("output.json"))
    print_out(json_text(file_json(file), 2) + "\n");
  else
    print_file(file);
  return {};
}

}  // namespace

int inspect_command(const Config& config) {
  return exit_code(inspect(config));
}

}  // namespace tessera::cli
