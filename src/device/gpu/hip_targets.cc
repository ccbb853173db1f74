#include "device/gpu/hip_targets.h"

#include <fmt/core.h>

namespace tessera::gpu {
namespace {

// Takes what is ahead of the next separator.
std::string_view take_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

bool has_feature(std::string_view features, std::string_view wanted) {
  while (!features.empty())
    if (take_part(features, ':') == wanted) return true;
  return false;
}

bool runs_on(std::string_view target, std::string_view processor) {
  // Of a generation's processors, by how its name begins: gfx10-3-generic, gfx9-4-generic.
  if (target.ends_with("-generic"))
    return processor.starts_with(target.substr(0, target.find('-')));
  if (take_part(target, ':') != take_part(processor, ':')) return false;
  while (!target.empty())
    if (!has_feature(processor, take_part(target, ':'))) return false;
  return true;
}

}  // namespace

std::string hip_refusal(std::string_view targets, std::string_view processor) {
  for (std::string_view left = targets; !left.empty();)
    if (runs_on(take_part(left, ','), processor)) return {};
  const std::string_view plain = processor.substr(0, processor.find(':'));
  return fmt::format(
      "this build has kernels for {} alone and the device is a {}: build it with "
      "-DTESSERA_HIP_TARGETS={}",
      targets, plain, plain);
}

}  // namespace tessera::gpu
