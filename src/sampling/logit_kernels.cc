#include "sampling/logit_kernels.h"

#include "device/cpu/isa.h"
#include "sampling/logit_kernels_inl.h"

namespace tessera {

#if defined(__x86_64__)
extern const LogitKernels kLogitKernelsAvx2;
extern const LogitKernels kLogitKernelsAvx512;
#endif

namespace {
constexpr LogitKernels kPortable = {"portable", max_value, weigh_values, sum_of_exp, sum_of_values};
}  // namespace

std::vector<const LogitKernels*> runnable_logit_kernels() {
  std::vector<const LogitKernels*> kernels = {&kPortable};
#if defined(__x86_64__)
  if (cpu::isa_supported(cpu::Isa::avx2)) kernels.push_back(&kLogitKernelsAvx2);
  if (cpu::isa_supported(cpu::Isa::avx512)) kernels.push_back(&kLogitKernelsAvx512);
#endif
  return kernels;
}

const LogitKernels& logit_kernels() {
  static const LogitKernels& best = *runnable_logit_kernels().back();
  return best;
}

}  // namespace tessera
