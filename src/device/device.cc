#include "device/device.h"

#include "base/check.h"
#include "base/result.h"

namespace tessera {

const char* kv_type_name(KvType type) {
  switch (type) {
    case KvType::f16:
      return "f16";
    case KvType::f32:
      return "f32";
    case KvType::q8_0:
      return "q8_0";
  }
  return "unknown";
}

Result<KvType> parse_kv_type(std::string_view name) {
  for (KvType type : {KvType::f16, KvType::f32, KvType::q8_0})
    if (name == kv_type_name(type)) return type;
  return Error::make(ErrorCode::invalid, "KV type '{}' is unknown; give f16, f32 or q8_0", name);
}

bool Device::choose(std::span<ChosenToken> chosen) {
  for (ChosenToken& token : chosen) token.id = kNotChosen;
  return false;
}

// A device without these refuses a layout with experts.
std::span<const float> Device::expert_rows(int) {
  CHECK(false, "{} holds every expert", name());
  return {};
}

void Device::add_expert_sums(int, std::span<const std::int32_t>, std::span<const double>) {
  CHECK(false, "{} holds every expert", name());
}

std::span<const std::uint8_t> Device::streamable(int) {
  return {};
}

double Device::stream_us(int, int) {
  return 0.0;
}

void Device::stream_experts(int, std::span<const RoutedPair>) {
  CHECK(false, "{} streams no experts", name());
}

void Device::begin_replace_expert(const ExpertMove&) {
  CHECK(false, "{} holds every expert", name());
}

Result<bool> Device::expert_replaced() {
  return Error::make(ErrorCode::unsupported, "{} holds every expert", name());
}

}  // namespace tessera
