#include "engine/logit_kernels.h"

#include "engine/logit_kernels_inl.h"

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
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    kernels.push_back(&kLogitKernelsAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"))
    kernels.push_back(&kLogitKernelsAvx512);
#endif
  return kernels;
}

const LogitKernels& logit_kernels() {
  static const LogitKernels& best = *runnable_logit_kernels().back();
  return best;
}

}  // namespace tessera
