#include "model/synth/fill.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace tessera::synth {
namespace {

constexpr float kNeverTurns = 1e30f;

// SplitMix64: 64 random bits for each value of a counter.
std::uint64_t random_bits(std::uint64_t counter) {
  std::uint64_t v = counter + 0x9e3779b97f4a7c15u;
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
  return v ^ (v >> 31);
}

// FNV-1a over the name, so that a tensor's numbers do not depend on the tensors before it.
std::uint64_t tensor_seed(const std::string& name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return random_bits(hash ^ random_bits(seed));
}

float element(const Fill& fill, std::uint64_t seed, std::int64_t index) {
  const std::uint64_t bits = random_bits(seed + static_cast<std::uint64_t>(index));
  const float unit = static_cast<float>(bits >> 40) * 0x1p-24f;  // 0 to 1
  switch (fill.kind) {
    case Fill::Kind::uniform:
      return fill.a + unit * (fill.b - fill.a);
    case Fill::Kind::uniform_signed: {
      const float magnitude = fill.a + unit * (fill.b - fill.a);
      return (bits & 1) != 0 ? magnitude : -magnitude;
    }
    case Fill::Kind::negative_decay:
      return -fill.a * std::pow(fill.b / fill.a, unit);
    case Fill::Kind::rope_factors:
      return static_cast<float>(index) < fill.a ? 1.0f : kNeverTurns;
    case Fill::Kind::normal:
      break;
  }
  CHECK(false, "a normal fill has no single elements");
}

}  // namespace

std::int64_t block_count(const LayoutTensor& tensor) {
  return tensor.bytes / block_format(tensor.type).bytes;
}

void fill_blocks(const LayoutTensor& tensor, std::uint64_t seed, std::int64_t first_block,
                 std::int64_t n_blocks, std::byte* dst) {
  const std::uint64_t own_seed = tensor_seed(tensor.name, seed);
  if (tensor.fill.kind == Fill::Kind::normal) {
    random_blocks(tensor.type, own_seed, first_block, n_blocks, tensor.fill.a, dst);
    return;
  }
  CHECK(tensor.type == BlockType::F32, "tensor {}", tensor.name);
  for (std::int64_t i = 0; i < n_blocks; ++i) {
    const float value = element(tensor.fill, own_seed, first_block + i);
    std::memcpy(dst + i * std::int64_t{sizeof(float)}, &value, sizeof(value));
  }
}

}  // namespace tessera::synth
