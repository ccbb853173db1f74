#include "tests/cli/capability_entries.h"

#include <algorithm>
#include <cmath>

#include "device/cpu/isa.h"

namespace tessera::testing {

const Entry* find_entry(std::string_view key) {
  for (const Entry& entry : kEntries)
    if (entry.key == key) return &entry;
  return nullptr;
}

std::vector<Entry> values_of(const Entry& entry) {
  std::vector<Entry> all = {entry};
  for (std::string_view left = entry.others; !left.empty();) {
    const std::string_view value = left.substr(0, left.find('|'));
    all.push_back({entry.key, entry.effect, value});
    left.remove_prefix(std::min(left.size(), value.size() + 1));
  }
  return all;
}

const Refusal* find_refusal(const Entry& entry, Topology topology) {
  for (const Refusal& refusal : kRefusals)
    if (refusal.key == entry.key && (refusal.value.empty() || refusal.value == entry.value) &&
        (refusal.where & of(topology)) != 0)
      return &refusal;
  return nullptr;
}

bool is_default_here(const Entry& entry) {
  if (entry.key == "kv.type") return entry.value == "f32";
  if (entry.key != "placement.cpu_isa") return false;
  const Result<cpu::Isa> isa = cpu::parse_isa(entry.value);
  return !isa || *isa >= cpu::detect_isa();
}

Settings with(const Entry& entry, Topology topology) {
  return joined(Rig::get().topology(topology),
                Rig::get().setting(entry.key, entry.value, topology));
}

std::vector<Entry> chosen(std::initializer_list<Effect> effects, Topology topology, int round) {
  std::vector<Entry> all;
  for (const Entry& entry : kEntries) {
    if (std::count(effects.begin(), effects.end(), entry.effect) == 0) continue;
    std::vector<Entry> values = values_of(entry);
    std::erase_if(values, [&](const Entry& one) {
      return find_refusal(one, topology) != nullptr || is_default_here(one);
    });
    if (!values.empty())
      all.push_back(values[std::min(values.size() - 1, static_cast<std::size_t>(round))]);
  }
  return all;
}

Settings all_of(std::initializer_list<Effect> effects, Topology topology, int round) {
  Settings settings;
  for (const Entry& entry : chosen(effects, topology, round))
    settings = joined(settings, Rig::get().setting(entry.key, entry.value, topology));
  return settings;
}

Settings idle_on(Topology topology, int round) {
  Settings settings = all_of({Effect::process, Effect::gpu}, topology, round);
  if ((of(topology) & kLayerWorkers) == 0)
    settings = joined(settings, all_of({Effect::layers}, topology, round));
  if ((of(topology) & kExpertWorkers) == 0)
    settings = joined(settings, all_of({Effect::experts}, topology, round));
  if ((of(topology) & kWorkers) == 0)
    settings = joined(settings, all_of({Effect::workers}, topology, round));
  return settings;
}

std::vector<float> logits_of(const Settings& settings) {
  const Result<Computed> computed = compute(settings);
  EXPECT_TRUE(computed) << computed.error().message;
  return computed ? computed->logits : std::vector<float>();
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace tessera::testing
