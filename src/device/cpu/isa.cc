#include "device/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tessera::cpu {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

namespace {

// clang 14's __builtin_cpu_supports does not know this one.
bool has_f16c() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
#else
  return false;
#endif
}

}  // namespace

bool isa_supported(Isa isa) {
  if (isa == Isa::portable) return true;
#if defined(__x86_64__)
  // The builtin also asks the operating system whether it saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0 && has_f16c();
  if (isa == Isa::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

Isa detect_isa() {
  for (Isa isa : {Isa::avx512, Isa::avx2}) {
    if (isa_supported(isa)) return isa;
  }
  return Isa::portable;
}

Result<Isa> parse_isa(std::string_view name) {
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (name != isa_name(isa)) continue;
    if (isa_supported(isa)) return isa;
    return Error::make(ErrorCode::unsupported,
                       "instruction set {} is not available on this machine, the widest here is {}",
                       name, isa_name(detect_isa()));
  }
  return Error::make(ErrorCode::invalid,
                     "unknown instruction set \"{}\", expected portable, avx2 or avx512", name);
}

}  // namespace tessera::cpu
