#include "cli/option_table.h"

#include <array>
#include <utility>

#include "cli/options_call.h"
#include "cli/options_experts.h"
#include "cli/options_model.h"
#include "cli/options_serving.h"
#include "cli/options_worker.h"

namespace tessera::cli {
namespace {

// The tables of options_*.h as one.
template <std::size_t... N>
constexpr auto joined(const std::array<Option, N>&... tables) {
  std::array<Option, (N + ...)> all{};
  std::size_t n = 0;
  const auto append = [&](const auto& table) {
    for (const Option& option : table) all[n++] = option;
  };
  (append(tables), ...);
  return all;
}

constexpr auto kOptions =
    joined(kModelOptions, kExpertOptions, kWorkerOptions, kServingOptions, kCallOptions);

constexpr auto kGroups = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"run", "This call"},
    {"logits", "This call"},
    {"text", "This call"},
    {"bench", "This call"},
    {"calibrate", "This call"},
    {"plan", "This call"},
    {"synth", "This call"},
    {"output", "This call"},
    {"placement", "Model and memory"},
    {"experts", "Experts"},
    {"kv", "Model and memory"},
    {"engine", "Model and memory"},
    {"worker", "Workers"},
    {"sampling", "Sampling"},
    {"server", "Server"},
    {"log", "General"},
});

}  // namespace

std::span<const Option> option_table() {
  return kOptions;
}

const Option* find_option(std::string_view key) {
  for (const Option& option : kOptions)
    if (option.key == key) return &option;
  return nullptr;
}

std::string_view option_group(const Option& option) {
  const std::string_view section = option.key.substr(0, option.key.find('.'));
  for (const auto& [name, title] : kGroups)
    if (name == section) return title;
  return "General";
}

std::string variable_name(const Option& option) {
  std::string name = "TESSERA_";
  for (const char c : option.key)
    name += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

}  // namespace tessera::cli
