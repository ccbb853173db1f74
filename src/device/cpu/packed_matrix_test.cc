#include "device/cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/buffer.h"

namespace tessera::cpu {
namespace {

struct Shape {
  std::int64_t rows, cols;
};

std::vector<std::byte> random_rows(BlockType type, Shape shape, std::int64_t stride) {
  std::vector<std::byte> file(static_cast<std::size_t>(shape.rows * stride), std::byte{0xee});
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t blocks = shape.cols / block_format(type).elems;
    random_blocks(type, 11, row * blocks, blocks, 0.5f, file.data() + row * stride);
  }
  return file;
}

AlignedBuffer poisoned(std::int64_t bytes) {
  AlignedBuffer buffer = *AlignedBuffer::allocate(static_cast<std::size_t>(bytes));
  std::memset(buffer.data(), 0xee, buffer.size());
  return buffer;
}

std::vector<Shape> shapes(BlockType type) {
  const std::int64_t elems = block_format(type).elems;
  const std::int64_t least = elems == 1 ? 7 : elems;
  return {{1, least}, {15, 3 * least}, {16, 5 * least}, {17, 768}, {100, 1024}};
}

TEST(PackedMatrix, RowsComeBackBitwise) {
  for (const BlockType type : all_block_types()) {
    for (const Shape shape : shapes(type)) {
      const std::int64_t stride = row_bytes(type, shape.cols) + 3;
      const std::vector<std::byte> file = random_rows(type, shape, stride);
      AlignedBuffer packed = poisoned(packed_bytes(type, shape.rows, shape.cols));
      pack_groups({type, shape.rows, shape.cols, file.data(), stride}, {0, group_count(shape.rows)},
                  packed.data());
      const PackedMatrix matrix(type, shape.rows, shape.cols, packed.data());
      const std::size_t row_size = static_cast<std::size_t>(shape.cols);
      std::vector<float> expected(row_size), actual(row_size);
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        dequantize_row(type, file.data() + row * stride, shape.cols, expected.data());
        dequantize_packed_row(matrix, row, actual.data());
        ASSERT_EQ(std::memcmp(expected.data(), actual.data(), row_size * sizeof(float)), 0)
            << block_type_name(type) << " row " << row << " of " << shape.rows << "x" << shape.cols;
      }
    }
  }
}

TEST(PackedMatrix, AnyRangeOfGroupsCanBePackedAlone) {
  for (const BlockType type : all_block_types()) {
    const Shape shape{70, 512};
    const std::int64_t stride = row_bytes(type, shape.cols);
    const std::vector<std::byte> file = random_rows(type, shape, stride);
    const MatrixSource source{type, shape.rows, shape.cols, file.data(), stride};
    AlignedBuffer whole = poisoned(packed_bytes(type, shape.rows, shape.cols));
    AlignedBuffer parts = poisoned(packed_bytes(type, shape.rows, shape.cols));
    pack_groups(source, {0, 5}, whole.data());
    pack_groups(source, {3, 5}, parts.data());
    pack_groups(source, {0, 1}, parts.data());
    pack_groups(source, {1, 3}, parts.data());
    pack_groups(source, {2, 2}, parts.data());
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size()), 0) << block_type_name(type);
  }
}

TEST(PackedMatrix, IsAsLargeAsTheFile) {
  for (const BlockType type : all_block_types()) {
    const std::int64_t file = 512 * row_bytes(type, 2048);
    EXPECT_EQ(packed_bytes(type, 512, 2048), file) << block_type_name(type);
    const std::int64_t one_block = block_format(type).elems;
    EXPECT_EQ(packed_group_bytes(type, one_block) % 64, 0);
    EXPECT_LT(packed_group_bytes(type, one_block), 16 * block_format(type).bytes + 64);
    EXPECT_EQ(packed_bytes(type, 17, 2048), 32 * row_bytes(type, 2048));
  }
}

}  // namespace
}  // namespace tessera::cpu
