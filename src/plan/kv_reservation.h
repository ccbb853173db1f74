// How much memory a device sets aside for KV when experts and a KV pool compete for it. Rules for
// paged KV, of which only a pool of `pool` tokens is resident.
//
//   const KvReservation kv = reserve_kv({.device = 24 GiB, .fixed = ..., .experts = ...,
//                                        .token = 20480, .context = 131072, .pool = 49152});
//   kv.tokens;                      // that the device holds: 49152, or 131072
//   if (kv.pool_redundant) ...      // everything fits without the pool: no paging
//
// A pool is redundant where all experts are resident beside the KV of the whole context. It is not
// where they are so only because of the pool. kv_pool_tokens() is the one place that sizes a pool:
// no plan has one yet; its result belongs into the plan, where reservation and allocation read it.
// Bytes a token are those of the layers that store KV, in the cache's own type (kv_token_bytes());
// layers with a window and recurrent state do not grow with the context and belong to `fixed`.
// Subtractions stop at 0, since a probe may report more free than there is. All functions are pure.
#pragma once

#include <cstdint>
#include <optional>

#include "device/device.h"
#include "model/spec.h"

namespace tessera {

struct KvDemand {
  std::int64_t device = 0;   // bytes the device may use
  std::int64_t fixed = 0;    // bytes of all but experts and KV: weights, scratch, drafter, safety
  std::int64_t experts = 0;  // bytes of all routed experts
  std::int64_t token = 0;    // bytes of KV a token
  std::int64_t context = 0;  // tokens
  std::int64_t pool = 0;     // tokens of the pool; 0: no paging
};

struct KvReservation {
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::int64_t expert_bytes = 0;  // what is left for experts, at most all of them
  bool pool_redundant = false;    // all experts fit beside the whole context's KV
  bool pool_reduced = false;      // fewer tokens than the context are reserved
};
KvReservation reserve_kv(const KvDemand& demand);

struct KvPoolOptions {
  std::optional<std::int64_t> asked;  // tokens that a person wants; 0: no pool; absent: chosen here
  std::optional<std::int64_t> free;   // bytes free on the device; absent: nobody knows
  std::int64_t reserve = 0;           // of them: to leave alone
  std::int64_t token = 0;             // bytes of KV a token
  std::int64_t context = 0;           // tokens
  std::int64_t most = 16384;          // tokens beyond which a larger pool is no faster
};
// What was asked for, or half of what is free; in steps of 256 tokens, from 512 to the context.
// Where nobody knows what is free, the context: a guess would reserve too much or too little.
// KvDemand::pool and the allocation both read the result.
std::int64_t kv_pool_tokens(const KvPoolOptions& options);

// Bytes that a further position takes in the layers that see all of them.
std::int64_t kv_token_bytes(const ModelSpec& spec, KvType type);

}  // namespace tessera
