#include "model/synth/knobs.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/check.h"

namespace tessera::synth {
namespace {

constexpr std::int64_t kMaxInteger = std::int64_t{1} << 30;

// Edits (insert, delete, replace) from a to b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_integer(std::string_view text, std::int64_t& value) {
  return parse_number(text, value) && value >= 0 && value <= kMaxInteger;
}

bool parse_flag(std::string_view text, bool& value) {
  value = text == "true" || text == "1";
  return value || text == "false" || text == "0";
}

template <typename T, typename Parse>
bool parse_list(std::string_view text, std::vector<T>& values, Parse parse) {
  constexpr std::size_t kMaxItems = 4096;
  while (values.size() < kMaxItems) {
    const std::size_t comma = text.find(',');
    T value{};
    if (!parse(text.substr(0, comma), value)) return false;
    values.push_back(value);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
  return false;
}

std::optional<KnobValue> parse_value(KnobKind kind, std::string_view text) {
  std::int64_t integer = 0;
  double real = 0;
  bool flag = false;
  std::vector<std::int64_t> integers;
  std::vector<bool> flags;
  switch (kind) {
    case KnobKind::integer:
      if (parse_integer(text, integer)) return integer;
      break;
    case KnobKind::real:
      if (parse_number(text, real)) return real;
      break;
    case KnobKind::flag:
      if (parse_flag(text, flag)) return flag;
      break;
    case KnobKind::text:
      return std::string(text);
    case KnobKind::integers:
      if (parse_list(text, integers, parse_integer)) return integers;
      break;
    case KnobKind::flags:
      if (parse_list(text, flags, parse_flag)) return flags;
      break;
  }
  return std::nullopt;
}

const char* kind_text(KnobKind kind) {
  switch (kind) {
    case KnobKind::integer:
      return "an integer from 0 to 2^30";
    case KnobKind::real:
      return "a number";
    case KnobKind::flag:
      return "true or false";
    case KnobKind::text:
      return "text";
    case KnobKind::integers:
      return "integers separated by commas";
    case KnobKind::flags:
      return "true and false separated by commas";
  }
  return "";
}

}  // namespace

Result<Knobs> Knobs::make(std::string_view family, std::string_view preset,
                          std::span<const std::string> overrides) {
  Knobs knobs;
  for (const FamilyPreset& candidate : family_presets()) {
    if (candidate.family == family) knobs.family_ = &candidate;
  }
  if (knobs.family_ == nullptr) {
    return Error::make(ErrorCode::invalid,
                       "unknown family \"{}\"; there are qwen35moe, qwen35, laguna, gemma4, "
                       "gemma4moe and qwen3",
                       family);
  }
  const auto column = std::ranges::find(kPresetNames, preset);
  if (column == std::end(kPresetNames)) {
    return Error::make(ErrorCode::invalid, "unknown preset \"{}\"; there are tiny, mini and full",
                       preset);
  }
  knobs.architecture_ = knobs.family_->architecture;
  for (const KnobDef& def : knobs.family_->knobs) {
    const std::string_view text = def.values[static_cast<std::size_t>(column - kPresetNames)];
    const Status status = knobs.set(def, text);
    CHECK(status.ok(), "preset {} of {}: {}", preset, family, status.error().message);
  }
  for (const std::string& assignment : overrides) {
    TESSERA_TRY(knobs.override_one(assignment));
  }
  return knobs;
}

const KnobDef* Knobs::find(std::string_view name) const {
  for (const KnobDef& def : family_->knobs) {
    if (def.name == name) return &def;
  }
  return nullptr;
}

Status Knobs::set(const KnobDef& def, std::string_view text) {
  if (text.empty()) {
    if (!def.optional) {
      return Error::make(ErrorCode::invalid, "{} cannot be left out", def.name);
    }
    values_[def.name] = std::monostate{};
    return {};
  }
  std::optional<KnobValue> value = parse_value(def.kind, text);
  if (!value) {
    return Error::make(ErrorCode::invalid, "{} is \"{}\"; it must be {}", def.name, text,
                       kind_text(def.kind));
  }
  values_[def.name] = *std::move(value);
  return {};
}

Status Knobs::override_one(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    return Error::make(ErrorCode::invalid, "\"{}\" is not of the form key=value", assignment);
  }
  std::string_view name = assignment.substr(0, equals);
  const std::string prefix = architecture_ + ".";
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (const KnobDef* def = find(name)) return set(*def, assignment.substr(equals + 1));

  std::string_view nearest;
  std::size_t best = std::string_view::npos;
  for (const KnobDef& def : family_->knobs) {
    const std::size_t distance = edit_distance(name, def.name);
    if (distance < best) {
      best = distance;
      nearest = def.name;
    }
  }
  return Error::make(ErrorCode::invalid, "unknown key \"{}\" for {}; the nearest is {}", name,
                     family_->family, nearest);
}

const KnobValue& Knobs::value(std::string_view name) const {
  const auto found = values_.find(name);
  CHECK(found != values_.end(), "no knob {} in {}", name, family_->family);
  return found->second;
}

bool Knobs::has(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !std::holds_alternative<std::monostate>(found->second);
}

std::int64_t Knobs::integer(std::string_view name) const {
  return at(name, 0);
}

std::int64_t Knobs::integer_or(std::string_view name, std::int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

float Knobs::number_or(std::string_view name, float fallback) const {
  const auto* number = has(name) ? std::get_if<double>(&value(name)) : nullptr;
  return number != nullptr ? static_cast<float>(*number) : fallback;
}

bool Knobs::flag(std::string_view name) const {
  return has(name) && std::get<bool>(value(name));
}

std::int64_t Knobs::at(std::string_view name, int layer) const {
  const KnobValue& found = value(name);
  const auto index = static_cast<std::size_t>(layer);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found)) {
    return (*list)[index % list->size()];
  }
  if (const auto* list = std::get_if<std::vector<bool>>(&found)) {
    return (*list)[index % list->size()] ? 1 : 0;
  }
  CHECK(std::holds_alternative<std::int64_t>(found), "knob {} is not an integer", name);
  return std::get<std::int64_t>(found);
}

}  // namespace tessera::synth
