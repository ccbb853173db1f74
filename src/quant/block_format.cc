#include "quant/block_format.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "quant/codec.h"

namespace tessera {
namespace {

struct Known {
  std::uint32_t id;
  bool supported;
  BlockFormat format;
};

// In the order of the ids. Ids that are missing were withdrawn or belong to one program only.
constexpr Known kKnown[] = {
    {0, true, {"F32", 1, 4}},          {1, true, {"F16", 1, 2}},
    {2, true, {"Q4_0", 32, 18}},       {3, true, {"Q4_1", 32, 20}},
    {6, true, {"Q5_0", 32, 22}},       {7, true, {"Q5_1", 32, 24}},
    {8, true, {"Q8_0", 32, 34}},       {9, false, {"Q8_1", 32, 36}},
    {10, true, {"Q2_K", 256, 84}},     {11, true, {"Q3_K", 256, 110}},
    {12, true, {"Q4_K", 256, 144}},    {13, true, {"Q5_K", 256, 176}},
    {14, true, {"Q6_K", 256, 210}},    {15, false, {"Q8_K", 256, 292}},
    {16, false, {"IQ2_XXS", 256, 66}}, {17, false, {"IQ2_XS", 256, 74}},
    {18, false, {"IQ3_XXS", 256, 98}}, {19, false, {"IQ1_S", 256, 50}},
    {20, true, {"IQ4_NL", 32, 18}},    {21, false, {"IQ3_S", 256, 110}},
    {22, false, {"IQ2_S", 256, 82}},   {23, true, {"IQ4_XS", 256, 136}},
    {24, false, {"I8", 1, 1}},         {25, false, {"I16", 1, 2}},
    {26, false, {"I32", 1, 4}},        {27, false, {"I64", 1, 8}},
    {28, false, {"F64", 1, 8}},        {29, false, {"IQ1_M", 256, 56}},
    {30, true, {"BF16", 1, 2}},        {34, false, {"TQ1_0", 256, 54}},
    {35, false, {"TQ2_0", 256, 66}},   {39, true, {"MXFP4", 32, 17}},
    {40, false, {"NVFP4", 64, 36}},
};

constexpr std::array kTypes = {
    BlockType::F32,    BlockType::F16,    BlockType::Q4_0, BlockType::Q4_1,
    BlockType::Q5_0,   BlockType::Q5_1,   BlockType::Q8_0, BlockType::Q2_K,
    BlockType::Q3_K,   BlockType::Q4_K,   BlockType::Q5_K, BlockType::Q6_K,
    BlockType::IQ4_NL, BlockType::IQ4_XS, BlockType::BF16, BlockType::MXFP4,
};

const Known* find_known(std::uint32_t id) {
  for (const Known& known : kKnown) {
    if (known.id == id) return &known;
  }
  return nullptr;
}

std::int64_t whole_blocks(BlockType type, std::int64_t n) {
  const BlockFormat& format = block_format(type);
  CHECK(n >= 0 && n % format.elems == 0, "{} elements are not whole {} blocks", n, format.name);
  return n / format.elems;
}

template <typename Block>
void decode_row(const std::byte* src, std::int64_t blocks, std::int64_t elems, float* dst) {
  for (std::int64_t i = 0; i < blocks; ++i) {
    Block block;
    std::memcpy(&block, src + i * static_cast<std::int64_t>(sizeof(Block)), sizeof(Block));
    decode(block, dst + i * elems);
  }
}

template <typename Block>
void encode_row(const float* src, std::int64_t blocks, std::int64_t elems, std::byte* dst) {
  for (std::int64_t i = 0; i < blocks; ++i) {
    Block block;
    encode(src + i * elems, block);
    std::memcpy(dst + i * static_cast<std::int64_t>(sizeof(Block)), &block, sizeof(Block));
  }
}

struct RowCodec {
  void (*decode)(const std::byte*, std::int64_t, std::int64_t, float*);
  void (*encode)(const float*, std::int64_t, std::int64_t, std::byte*);
};

template <typename Block>
constexpr RowCodec kCodec{&decode_row<Block>, &encode_row<Block>};

RowCodec row_codec(BlockType type) {
  switch (type) {
    case BlockType::F32:
      return kCodec<BlockF32>;
    case BlockType::F16:
      return kCodec<BlockF16>;
    case BlockType::BF16:
      return kCodec<BlockBF16>;
    case BlockType::Q4_0:
      return kCodec<BlockQ4_0>;
    case BlockType::Q4_1:
      return kCodec<BlockQ4_1>;
    case BlockType::Q5_0:
      return kCodec<BlockQ5_0>;
    case BlockType::Q5_1:
      return kCodec<BlockQ5_1>;
    case BlockType::Q8_0:
      return kCodec<BlockQ8_0>;
    case BlockType::Q2_K:
      return kCodec<BlockQ2_K>;
    case BlockType::Q3_K:
      return kCodec<BlockQ3_K>;
    case BlockType::Q4_K:
      return kCodec<BlockQ4_K>;
    case BlockType::Q5_K:
      return kCodec<BlockQ5_K>;
    case BlockType::Q6_K:
      return kCodec<BlockQ6_K>;
    case BlockType::IQ4_NL:
      return kCodec<BlockIQ4_NL>;
    case BlockType::IQ4_XS:
      return kCodec<BlockIQ4_XS>;
    case BlockType::MXFP4:
      return kCodec<BlockMXFP4>;
  }
  CHECK(false, "no codec for type id {}", static_cast<std::uint32_t>(type));
}

}  // namespace

std::span<const BlockType> all_block_types() {
  return kTypes;
}

const BlockFormat* known_block_format(std::uint32_t id) {
  const Known* known = find_known(id);
  return known == nullptr ? nullptr : &known->format;
}

const BlockFormat* block_format(std::uint32_t id) {
  const Known* known = find_known(id);
  return known == nullptr || !known->supported ? nullptr : &known->format;
}

const BlockFormat& block_format(BlockType type) {
  const BlockFormat* format = block_format(static_cast<std::uint32_t>(type));
  CHECK(format != nullptr, "type id {} is not supported", static_cast<std::uint32_t>(type));
  return *format;
}

const char* block_type_name(std::uint32_t id) {
  const Known* known = find_known(id);
  return known == nullptr ? "unknown" : known->format.name;
}

std::optional<BlockType> block_type_from_name(std::string_view name) {
  for (const BlockType type : kTypes) {
    if (name == block_type_name(type)) return type;
  }
  return std::nullopt;
}

std::int64_t row_bytes(BlockType type, std::int64_t n) {
  return whole_blocks(type, n) * block_format(type).bytes;
}

void dequantize_row(BlockType type, const std::byte* src, std::int64_t n, float* dst) {
  row_codec(type).decode(src, whole_blocks(type, n), block_format(type).elems, dst);
}

void quantize_row(BlockType type, const float* src, std::int64_t n, std::byte* dst) {
  row_codec(type).encode(src, whole_blocks(type, n), block_format(type).elems, dst);
}

}  // namespace tessera
