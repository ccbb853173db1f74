// Fuzzes the parser of routing profiles: what it takes, it writes in a form that reads back the
// same, and no count is beyond what ageing would forget.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "experts/routing_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tessera::RoutingProfile;
  const auto profile = RoutingProfile::parse({reinterpret_cast<const char*>(data), size});
  if (!profile) return 0;
  for (const auto& layer : profile->counts())
    for (const double count : layer) CHECK(count >= 0.0 && count <= RoutingProfile::kMostCount);
  const std::string text = profile->text();
  const auto again = RoutingProfile::parse(text);
  CHECK(again.ok() && again->text() == text);
  return 0;
}
