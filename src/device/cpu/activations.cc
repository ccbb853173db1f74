#include "device/cpu/activations.h"

#include "base/check.h"
#include "device/cpu/matmul_kernels.h"

namespace tessera::cpu {

std::int64_t activation_bytes(std::int64_t n_rows, std::int64_t cols) {
  const std::int64_t records = (cols + kRecordElems - 1) / kRecordElems;
  return records * record_rows(n_rows) * static_cast<std::int64_t>(sizeof(ActivationRecord));
}

void quantize_rows(const MatmulKernels& kernels, const Activations& x, std::int64_t row_begin,
                   std::int64_t row_end) {
  CHECK(0 <= row_begin && row_begin <= row_end && row_end <= x.n_rows, "rows {}..{} of {}",
        row_begin, row_end, x.n_rows);
  CHECK(x.cols % kRecordElems == 0, "{} columns", x.cols);
  const std::int64_t step = record_rows(x.n_rows);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    kernels.quantize(x.rows + row * x.stride, x.cols / kRecordElems, x.records + row, step);
  }
}

}  // namespace tessera::cpu
