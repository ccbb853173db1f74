// Block formats: how a row of numbers is stored in a GGUF tensor.
//
// A row of n elements is n / elems consecutive blocks of `bytes` bytes; n is a multiple of elems.
// Everything is little endian. These functions are the reference: plain scalar code, no state, safe
// from any number of threads. Callers own all memory; sources and destinations need no alignment
// beyond that of their declared type and do not overlap. Breaking a stated precondition is a bug
// (CHECK), so sizes that come from a file are checked before they get here.
//
//   const BlockFormat* format = block_format(id_from_a_file);
//   if (format == nullptr) return unsupported(block_type_name(id_from_a_file));
//   std::vector<std::byte> row(row_bytes(BlockType::Q4_K, 4096));
//   quantize_row(BlockType::Q4_K, weights, 4096, row.data());
//   dequantize_row(BlockType::Q4_K, row.data(), 4096, back);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

// The values are the type ids of GGUF.
enum class BlockType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
  MXFP4 = 39,
};

struct BlockFormat {
  const char* name;  // as the field writes it: "Q4_K"
  int elems;         // elements of one block
  int bytes;         // bytes of one block
};

// Every BlockType, in the order of the ids.
std::span<const BlockType> all_block_types();

// The format with this id, or nullptr if this build cannot compute with it.
const BlockFormat* block_format(std::uint32_t id);
const BlockFormat& block_format(BlockType type);

// As above, but also for formats that are only known by name and size (IQ2_XXS, I32, ...). nullptr
// for an id that no released format has.
const BlockFormat* known_block_format(std::uint32_t id);

// The name of a known format, else "unknown".
const char* block_type_name(std::uint32_t id);
inline const char* block_type_name(BlockType type) {
  return block_type_name(static_cast<std::uint32_t>(type));
}

// The supported type with this name; case matters.
std::optional<BlockType> block_type_from_name(std::string_view name);

// Bytes of a row of n elements; n >= 0 and a multiple of the block.
std::int64_t row_bytes(BlockType type, std::int64_t n);

// Formulas: the published GGUF block layouts, evaluated in f32.
void dequantize_row(BlockType type, const std::byte* src, std::int64_t n, float* dst);

// Deterministic, least squares per block over a few candidate scales. The input is finite; a value
// beyond what the scales can hold saturates.
void quantize_row(BlockType type, const float* src, std::int64_t n, std::byte* dst);

// Writes blocks first_block .. first_block + n_blocks - 1 of an endless sequence of valid random
// blocks that `seed` names; their values have zero mean and about the given standard deviation
// (1e-4 to 1e2; within 5% from 1e-3 on). Any range of blocks can be made on its own, in any order,
// by any thread. F32, F16 and BF16 are approximately normal.
void random_blocks(BlockType type, std::uint64_t seed, std::int64_t first_block,
                   std::int64_t n_blocks, float stddev, std::byte* dst);

}  // namespace tessera
