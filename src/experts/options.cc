#include "experts/options.h"

#include <fmt/ranges.h>

#include <array>
#include <span>

namespace tessera {
namespace {

constexpr std::array kModes = {"auto", "batched", "stream"};
constexpr std::array kTransports = {"auto", "shared", "stream"};
constexpr std::array kPayloads = {"f32", "f16", "bf16", "int16"};
constexpr std::array kPrefaults = {"off", "on", "lock"};
constexpr std::array kStreams = {"auto", "on", "off"};

template <typename Value>
Result<Value> find(std::span<const char* const> names, std::string_view what,
                   std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<Value>(i);
  return Error::make(ErrorCode::invalid, "{} '{}' is unknown; give {} or {}", what, name,
                     fmt::join(names.first(names.size() - 1), ", "), names.back());
}

}  // namespace

const char* expert_mode_name(ExpertMode mode) {
  return kModes[static_cast<std::size_t>(mode)];
}
const char* expert_transport_name(ExpertTransport transport) {
  return kTransports[static_cast<std::size_t>(transport)];
}
const char* expert_payload_name(ExpertPayload payload) {
  return kPayloads[static_cast<std::size_t>(payload)];
}

Result<ExpertMode> parse_expert_mode(std::string_view name) {
  return find<ExpertMode>(kModes, "expert mode", name);
}
Result<ExpertTransport> parse_expert_transport(std::string_view name) {
  return find<ExpertTransport>(kTransports, "expert transport", name);
}
Result<ExpertPayload> parse_expert_payload(std::string_view name) {
  return find<ExpertPayload>(kPayloads, "expert payload", name);
}
Result<ExpertPrefault> parse_expert_prefault(std::string_view name) {
  return find<ExpertPrefault>(kPrefaults, "expert prefault", name);
}

Result<ExpertStream> parse_expert_stream(std::string_view name) {
  return find<ExpertStream>(kStreams, "expert stream", name);
}

}  // namespace tessera
