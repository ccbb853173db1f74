// Knobs: the numbers of a synthetic model, from a preset and the user's overrides.
//
// A knob is a metadata key without its architecture prefix, or a property of the generator. Its
// value is text until it is set, and checked then, so that reading one cannot fail. A list that is
// shorter than the model repeats.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tessera::synth {

enum class KnobKind { integer, real, flag, text, integers, flags };

enum class KnobPlace {
  key,        // a metadata key under the architecture's prefix
  full_key,   // a metadata key with a name of its own
  generator,  // shapes the file without being in it
};

constexpr int kPresets = 3;
constexpr const char* kPresetNames[kPresets] = {"tiny", "mini", "full"};

struct KnobDef {
  std::string_view name;
  KnobKind kind;
  std::array<std::string_view, kPresets> values;  // empty: the key is left out
  bool optional = false;
  KnobPlace place = KnobPlace::key;
};

using KnobValue = std::variant<std::monostate, std::int64_t, double, bool, std::string,
                               std::vector<std::int64_t>, std::vector<bool>>;

struct FamilyPreset {
  std::string_view family;
  std::string_view architecture;
  std::span<const KnobDef> knobs;
};
std::span<const FamilyPreset> family_presets();

class Knobs {
 public:
  static Result<Knobs> make(std::string_view family, std::string_view preset,
                            std::span<const std::string> overrides);

  const FamilyPreset& family() const { return *family_; }
  const std::string& architecture() const { return architecture_; }

  bool has(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;  // the knob must be present
  std::int64_t integer_or(std::string_view name, std::int64_t fallback) const;
  float number_or(std::string_view name, float fallback) const;
  bool flag(std::string_view name) const;  // false if absent or not a knob of this family
  // Element `layer` of a list that repeats; a scalar knob is the same everywhere.
  std::int64_t at(std::string_view name, int layer) const;
  const KnobValue& value(std::string_view name) const;

 private:
  Knobs() = default;
  const KnobDef* find(std::string_view name) const;
  Status set(const KnobDef& def, std::string_view text);
  Status override_one(std::string_view assignment);

  const FamilyPreset* family_ = nullptr;
  std::string architecture_;
  std::map<std::string_view, KnobValue> values_;
};

}  // namespace tessera::synth
