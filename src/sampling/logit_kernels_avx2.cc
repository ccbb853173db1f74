#include "sampling/logit_kernels.h"
#include "sampling/logit_kernels_inl.h"

namespace tessera {

extern const LogitKernels kLogitKernelsAvx2;
const LogitKernels kLogitKernelsAvx2 = {"avx2", max_value, weigh_values, sum_of_exp, sum_of_values};

}  // namespace tessera
