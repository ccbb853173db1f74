// Which instruction set the CPU kernels use. Chosen once at start; nothing here keeps state.
//
//   const MatmulKernels& kernels = matmul_kernels(detect_isa());
#pragma once

#include <string_view>

#include "base/result.h"

namespace tessera::cpu {

enum class Isa {
  portable,  // whatever the compiler targets by default
  avx2,      // AVX2, FMA, F16C
  avx512,    // AVX-512 F/BW/VL/DQ and VNNI
};

const char* isa_name(Isa isa);

// Whether both this processor and this operating system support it.
bool isa_supported(Isa isa);

// The widest supported one.
Isa detect_isa();

// "portable", "avx2" or "avx512"; an Error if the name is unknown or this machine lacks it.
Result<Isa> parse_isa(std::string_view name);

}  // namespace tessera::cpu
