// What a thread does between two looks while it spins: tells the core that it waits.
#pragma once

namespace tessera {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tessera
