#include "worker/body_sum.h"

#define XXH_STATIC_LINKING_ONLY  // a state on the stack
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the widest vectors that the processor has
#else
#include <xxhash.h>
#endif

namespace tessera::worker {
namespace {

std::uint64_t hash(Parts parts) {
  if (parts.size() == 1) return XXH3_64bits(parts[0].data(), parts[0].size());
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const std::span<const std::byte> part : parts)
    XXH3_64bits_update(&state, part.data(), part.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace

std::uint32_t body_sum(Parts parts) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> part : parts) bytes += part.size();
  return bytes == 0 ? 0 : static_cast<std::uint32_t>(hash(parts));
}

}  // namespace tessera::worker
