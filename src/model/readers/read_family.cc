#include <fmt/ranges.h>

#include <string_view>

#include "model/drafter.h"
#include "model/readers/readers.h"

namespace tessera {
namespace {

struct Family {
  std::string_view architecture;
  Result<FamilyModel> (*read)(const gguf::File&);
};

constexpr Family kFamilies[] = {
    {"qwen35moe", read_qwen35},  {"qwen35", read_qwen35}, {"qwen35moe_mtp", read_qwen35},
    {"qwen35_mtp", read_qwen35}, {"laguna", read_laguna}, {"gemma4", read_gemma4},
    {"qwen3", read_qwen3},
};

Status check_kind(const gguf::File& file) {
  TESSERA_ASSIGN(std::string_view type, file.metadata().get_string_or("general.type", "model"));
  if (type != "model") {
    return Error::make(ErrorCode::unsupported,
                       "general.type is \"{}\": this file is not a language model by itself", type);
  }
  return {};
}

}  // namespace

Result<FamilyModel> read_family(const gguf::File& file) {
  TESSERA_TRY(check_kind(file));
  TESSERA_ASSIGN(std::string_view architecture, file.metadata().get_string("general.architecture"));
  for (const Family& family : kFamilies) {
    if (family.architecture != architecture) continue;
    if (file.tensors().empty()) {
      return Error::make(ErrorCode::invalid, "the file holds metadata only, no tensors");
    }
    return family.read(file);
  }
  if (architecture == kDrafterArchitecture)
    return Error::make(
        ErrorCode::unsupported,
        "this is a drafter, which computes nothing by itself: give the model that it "
        "was made for");
  return Error::make(ErrorCode::unsupported,
                     "general.architecture \"{}\" is not supported; supported are {}",
                     architecture.substr(0, 64), fmt::join(supported_architectures(), ", "));
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.architecture);
  return names;
}

}  // namespace tessera
