// Matrix products of the CPU device: out = x * transpose(w), w packed or as a file has it.
//
// Lanes of a vector are output rows, and each sums over the columns in their order with one
// rounding rule. So an element of the result has the same bits whatever other rows are in the call,
// however the groups are shared among threads, and wherever its row stands. It differs between
// instruction sets, by rounding alone.
//
// No allocation, no state, no locks: threads share a product by calling with disjoint group ranges.
//
//   const MatmulKernels& kernels = matmul_kernels(detect_isa());
//   quantize_rows(kernels, x, 0, n);
//   matmul(kernels, w, {0, w.groups()}, x, {}, n, out, w.rows());
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/activations.h"
#include "device/cpu/isa.h"
#include "device/cpu/packed_matrix.h"

namespace tessera::cpu {

struct MatmulKernels;

// The kernels of a supported instruction set (isa_supported). The reference is valid forever.
const MatmulKernels& matmul_kernels(Isa isa);

// True if products with this type read the records of the activations, false if the float rows.
bool uses_records(BlockType type);

// True if products can take the rows of this type as a file has them.
bool reads_file(BlockType type);

// out[i * out_stride + r] = sum over c of w[r][c] * x[row_ids[i]][c], for i < n_rows and the rows r
// of `groups`. Without row_ids the i-th result belongs to row i of x. Ids
// may repeat. Other elements of out are not touched. w.cols() == x.cols, n_rows >= 0.
void matmul(const MatmulKernels& kernels, const PackedMatrix& w, GroupRange groups,
            const Activations& x, std::span<const std::int32_t> row_ids, int n_rows, float* out,
            std::ptrdiff_t out_stride);

// The same with the rows of a file, of a type that reads_file(), and with the same bits. Nothing is
// read but the rows' blocks.
void matmul(const MatmulKernels& kernels, const MatrixSource& w, GroupRange groups,
            const Activations& x, std::span<const std::int32_t> row_ids, int n_rows, float* out,
            std::ptrdiff_t out_stride);

}  // namespace tessera::cpu
