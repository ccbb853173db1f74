// Takes memory out of the caches, so that what reads it next reads memory: for measuring.
//
//   if (can_evict()) evict(expert.data(), expert.size());
//
// The bytes may be written or only readable, of a file too, and stay what they are.
#pragma once

#include <cstddef>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tessera {

constexpr bool can_evict() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

// Nothing where can_evict() is false.
inline void evict([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t size) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < size; at += kLine) _mm_clflush(data + at);
  if (size > 0) _mm_clflush(data + size - 1);
  _mm_mfence();
#endif
}

}  // namespace tessera
