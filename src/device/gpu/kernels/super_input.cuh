// What a decode product by super-blocks reads: a warp's 256 columns of an input row, normed, gated
// and rounded into shared memory.
//
// Rounding does not see a factor of the whole row, so 1 / rms of a normed row is applied to the
// result: no warp waits for the others' squares before its products. 1 / rms of a gated head is
// applied to the scales of its groups: who rounds 32 of its columns need not see the others.
#pragma once

#include "device/gpu/kernels/supers.cuh"

namespace tessera::gpu {

inline bool has_super_input(const Input& in) {
  if (in.cols % kSuperCols != 0) return false;
  if (in.kind != InputKind::gated_rms) return true;
  return in.gate_open &&
         (in.head_dim == 32 || in.head_dim == 64 || in.head_dim == 128 || in.head_dim == 256);
}

// The norm's weights of a super-block: they may be loaded ahead of chain_wait().
__device__ __forceinline__ Eight super_weight(const Input& in, int super, int lane) {
  if (in.kind == InputKind::plain) return {};
  if (in.kind == InputKind::rms_norm) return load_eight(in.weight + super * kSuperCols, lane);
  const auto* at = reinterpret_cast<const float4*>(in.weight + eight_at(lane) % in.head_dim);
  return {at[0], at[4]};
}

// What is read of a row's super-block: the gate too where there is one.
struct InputSuper {
  Eight x, z;
};
__device__ __forceinline__ InputSuper load_input(const Input& in, int row, int super, int lane) {
  const int id = in.row_ids == nullptr ? row : in.row_ids[row];
  InputSuper read;
  read.x = load_eight(in.x + id * in.stride + super * kSuperCols, lane);
  if (in.kind == InputKind::gated_rms)
    read.z = load_eight(in.gate + id * in.gate_stride + super * kSuperCols, lane);
  return read;
}

// The row's columns less the factor 1 / rms: in `square` the lane's part of the row's sum of
// squares (rms_norm), or 1 / rms of the lane's head (gated_rms).
__device__ __forceinline__ Eight normed_input(const Input& in, const InputSuper& read,
                                              const Eight& weight, float& square) {
  if (in.kind == InputKind::plain) return read.x;
  square = squares(read.x);
  if (in.kind == InputKind::rms_norm) return times(read.x, weight);
  for (int mask = 1; mask <= in.head_dim / 16; mask *= 2) square += shuffle_xor(square, mask);
  square = inverse_root(square / static_cast<float>(in.head_dim) + in.eps);
  return times(times(read.x, weight), read.z);
}

// Where `n_cols` rounded rows stand in shared memory, counted in bytes.
struct SuperRoom {
  int row_bytes = 0;
  int squares = 0;  // f32 [row][super]
  int bytes = 0;
};
__host__ __device__ inline SuperRoom super_room(int supers, int n_cols) {
  SuperRoom room;
  room.row_bytes = super_row_bytes(supers);
  room.squares = room.row_bytes * n_cols;
  room.bytes = room.squares + (supers * n_cols * 4 + 15) / 16 * 16;
  return room;
}

// One warp's super-block of one row to its place, and its part of the row's sum of squares.
__device__ __forceinline__ void put_input(const Input& in, const InputSuper& read,
                                          const Eight& weight, int lane, char* to, float* square) {
  float sum = 0;
  const Eight v = normed_input(in, read, weight, sum);
  if (in.kind == InputKind::rms_norm) sum = sum_of_groups(sum);
  round_super(v, in.kind == InputKind::gated_rms ? sum : 1.0f, lane, to);
  if (lane == 0) *square = sum;
}
__device__ __forceinline__ void stage_super(const Input& in, const SuperRoom& room, int row,
                                            int super, const InputSuper& read, const Eight& weight,
                                            int lane, char* shared) {
  float* squares = reinterpret_cast<float*>(shared + room.squares) + row * (in.cols / kSuperCols);
  put_input(in, read, weight, lane, shared + row * room.row_bytes + super * kSuperBytes,
            squares + super);
}

// What the products of a rounded row are to be multiplied with.
__device__ __forceinline__ float row_factor(const Input& in, const float* squares) {
  if (in.kind != InputKind::rms_norm) return 1.0f;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < in.cols / kSuperCols; ++i) sum += squares[i];
  return inverse_root(sum / static_cast<float>(in.cols) + in.eps);
}
// Of a staged row, after a barrier.
__device__ __forceinline__ float row_factor(const Input& in, const SuperRoom& room, int row,
                                            const char* shared) {
  return row_factor(
      in, reinterpret_cast<const float*>(shared + room.squares) + row * (in.cols / kSuperCols));
}

// --- Rows that an earlier kernel rounded (rounded_row_bytes in sizes.h) ---

__device__ __forceinline__ char* rounded_row(std::byte* rows, int cols, int row) {
  return reinterpret_cast<char*>(rows + row * rounded_row_bytes(cols));
}
__device__ __forceinline__ const char* rounded_row(const std::byte* rows, int cols, int row) {
  return reinterpret_cast<const char*>(rows + row * rounded_row_bytes(cols));
}
// f32 a super-block.
__device__ __forceinline__ float* rounded_squares(char* row, int cols) {
  return reinterpret_cast<float*>(row + cols / kSuperCols * kSuperBytes);
}
__device__ __forceinline__ const float* rounded_squares(const char* row, int cols) {
  return reinterpret_cast<const float*>(row + cols / kSuperCols * kSuperBytes);
}

}  // namespace tessera::gpu
