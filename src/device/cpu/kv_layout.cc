#include "device/cpu/kv_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"
#include "quant/half.h"

namespace tessera::cpu {
namespace {

constexpr int kScaleGroup = 32;  // dimensions that share a q8_0 scale

std::size_t size(int value) {
  return static_cast<std::size_t>(value);
}

std::size_t head_bytes(KvType type, int head_dim) {
  const std::size_t elements = size(head_dim) * kPageTokens;
  switch (type) {
    case KvType::f16:
      return elements * 2;
    case KvType::f32:
      return elements * 4;
    case KvType::q8_0:
      return elements + elements / kScaleGroup * 2;
  }
  CHECK(false, "KV type {}", static_cast<int>(type));
}

// Where element `dim` and scale `group` of one token stand, counted in elements and in scales.
struct TokenPlaces {
  std::size_t first, stride;
  std::size_t first_scale, scale_stride;
};

TokenPlaces key_places(int token) {
  return {size(token), kPageTokens, size(token), kPageTokens};
}
TokenPlaces value_places(int token, int head_dim) {
  const std::size_t groups = size(head_dim / kScaleGroup);
  return {size(token) * size(head_dim), 1, size(token) * groups, 1};
}

void store_f32(const float* x, int head_dim, const TokenPlaces& at, std::byte* head) {
  float* out = reinterpret_cast<float*>(head) + at.first;
  for (std::size_t d = 0; d < size(head_dim); ++d) out[d * at.stride] = x[d];
}

void store_f16(const float* x, int head_dim, const TokenPlaces& at, std::byte* head) {
  auto* out = reinterpret_cast<std::uint16_t*>(head) + at.first;
  // An infinity at one position would make NaN of the zero weight that other rows give it.
  constexpr float kLargest = 65504.0f;
  for (std::size_t d = 0; d < size(head_dim); ++d)
    out[d * at.stride] = float_to_half(std::clamp(x[d], -kLargest, kLargest));
}

void store_q8(const float* x, int head_dim, const TokenPlaces& at, std::byte* head) {
  auto* out = reinterpret_cast<std::int8_t*>(head) + at.first;
  auto* scales = reinterpret_cast<std::uint16_t*>(head + size(head_dim) * kPageTokens);
  for (std::size_t group = 0; group < size(head_dim / kScaleGroup); ++group) {
    const float* part = x + group * kScaleGroup;
    float largest = 0;
    for (int d = 0; d < kScaleGroup; ++d) largest = std::max(largest, std::fabs(part[d]));
    const std::uint16_t bits = float_to_half(largest / 127.0f);
    scales[at.first_scale + group * at.scale_stride] = bits;
    // The scale as it will be read, so that its rounding does not add to the error.
    const float stored = half_to_float(bits);
    const float inverse = stored > 0 ? 1.0f / stored : 0.0f;
    for (std::size_t d = 0; d < kScaleGroup; ++d) {
      const float level = std::clamp(std::nearbyint(part[d] * inverse), -127.0f, 127.0f);
      out[(group * kScaleGroup + d) * at.stride] = static_cast<std::int8_t>(level);
    }
  }
}

void store_head(KvType type, const float* x, int head_dim, const TokenPlaces& at, std::byte* head) {
  switch (type) {
    case KvType::f16:
      return store_f16(x, head_dim, at, head);
    case KvType::f32:
      return store_f32(x, head_dim, at, head);
    case KvType::q8_0:
      return store_q8(x, head_dim, at, head);
  }
}

Status check_head_dim(const char* which, int head_dim, KvType type) {
  const int unit = type == KvType::q8_0 ? 32 : 16;
  if (head_dim > 0 && head_dim % unit == 0) return {};
  return Error::make(ErrorCode::unsupported,
                     "attention {} head dimension {} does not fit the CPU's KV cache: it must be a "
                     "positive multiple of {}{}",
                     which, head_dim, unit, unit == 32 ? " for q8_0 (16 for f16 and f32)" : "");
}

}  // namespace

Status validate(const KvGeometry& geometry) {
  if (geometry.kv_heads <= 0) {
    return Error::make(ErrorCode::invalid, "attention needs at least one KV head, not {}",
                       geometry.kv_heads);
  }
  TESSERA_TRY(check_head_dim("key", geometry.head_dim_k, geometry.type));
  return check_head_dim("value", geometry.head_dim_v, geometry.type);
}

std::size_t kv_head_k_bytes(const KvGeometry& geometry) {
  return round_up<std::size_t>(head_bytes(geometry.type, geometry.head_dim_k), 64);
}
std::size_t kv_head_v_bytes(const KvGeometry& geometry) {
  return round_up<std::size_t>(head_bytes(geometry.type, geometry.head_dim_v), 64);
}
std::size_t kv_layer_page_bytes(const KvGeometry& geometry) {
  return size(geometry.kv_heads) * (kv_head_k_bytes(geometry) + kv_head_v_bytes(geometry));
}
std::size_t kv_k_offset(const KvGeometry& geometry, int kv_head) {
  return size(kv_head) * kv_head_k_bytes(geometry);
}
std::size_t kv_v_offset(const KvGeometry& geometry, int kv_head) {
  return size(geometry.kv_heads) * kv_head_k_bytes(geometry) +
         size(kv_head) * kv_head_v_bytes(geometry);
}

void store_kv(const KvGeometry& geometry, std::byte* layer_page, int token_in_page, const float* k,
              const float* v) {
  const TokenPlaces key = key_places(token_in_page);
  const TokenPlaces value = value_places(token_in_page, geometry.head_dim_v);
  for (int h = 0; h < geometry.kv_heads; ++h) {
    store_head(geometry.type, k + h * geometry.head_dim_k, geometry.head_dim_k, key,
               layer_page + kv_k_offset(geometry, h));
    store_head(geometry.type, v + h * geometry.head_dim_v, geometry.head_dim_v, value,
               layer_page + kv_v_offset(geometry, h));
  }
}

}  // namespace tessera::cpu
