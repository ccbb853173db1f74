// How one layer's keys and values lie in a KV page of kPageTokens (64) tokens.
//
//   K of every KV head, then V of every KV head
//   K of a head: [head_dim_k][64 tokens]   transposed, so that scores vectorise over tokens
//   V of a head: [64 tokens][head_dim_v]
//
// in f16 or f32, or q8_0: signed bytes in the same order, followed within the head's part by f16
// scales, one per token and 32 dimensions: [head_dim_k/32][64] for K, [64][head_dim_v/32] for V.
// Head parts start at multiples of 64 bytes. Slots of a page that were never written may hold
// anything; attention does not read them.
//
// Head dimensions are multiples of 16 (32 for q8_0): validate() says so to a person.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "device/batch.h"
#include "device/device.h"

namespace tessera::cpu {

struct KvGeometry {
  int kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  KvType type = KvType::f16;
};

Status validate(const KvGeometry& geometry);

std::size_t kv_head_k_bytes(const KvGeometry& geometry);
std::size_t kv_head_v_bytes(const KvGeometry& geometry);
// Bytes of one layer in one page, a multiple of 64.
std::size_t kv_layer_page_bytes(const KvGeometry& geometry);
// Offsets within the layer's part of a page.
std::size_t kv_k_offset(const KvGeometry& geometry, int kv_head);
std::size_t kv_v_offset(const KvGeometry& geometry, int kv_head);

// Writes one token: k is [kv_heads][head_dim_k], v is [kv_heads][head_dim_v]. Calls for different
// tokens may run at the same time.
void store_kv(const KvGeometry& geometry, std::byte* layer_page, int token_in_page, const float* k,
              const float* v);

}  // namespace tessera::cpu
