#include "plan/kv_reservation.h"

#include <algorithm>

#include "base/checked.h"
#include "device/cpu/cpu_device.h"

namespace tessera {
namespace {

constexpr std::int64_t kPoolStep = 256;
// The first page, four at the end and two to work with, in whole steps.
constexpr std::int64_t kLeastPool = 512;

std::int64_t left_of(std::int64_t bytes, std::int64_t used) {
  return std::max<std::int64_t>(0, bytes - used);
}

}  // namespace

KvReservation reserve_kv(const KvDemand& demand) {
  const std::int64_t full = demand.token * demand.context;
  KvReservation kv;
  const std::int64_t left = left_of(demand.device, demand.fixed);
  kv.pool_redundant = full <= left && left - full >= demand.experts;
  kv.pool_reduced = demand.pool > 0 && demand.pool < demand.context && !kv.pool_redundant;
  kv.tokens = kv.pool_reduced ? demand.pool : demand.context;
  kv.bytes = demand.token * kv.tokens;
  kv.expert_bytes = std::min(demand.experts, left_of(left, kv.bytes));
  return kv;
}

std::int64_t kv_pool_tokens(const KvPoolOptions& options) {
  if (options.asked == 0) return 0;
  std::int64_t tokens = options.context;
  if (options.asked) {
    tokens = std::min(tokens, *options.asked);
  } else if (options.free && options.token > 0) {
    const std::int64_t half = left_of(*options.free, options.reserve) / 2;
    tokens = std::min({tokens, half / options.token, options.most});
  }
  tokens = std::max(round_up(tokens, kPoolStep), kLeastPool);
  return std::min(tokens, options.context);
}

std::int64_t kv_token_bytes(const ModelSpec& spec, KvType type) {
  ShardLayout all;
  all.end_layer = spec.n_layer();
  all.kv_type = type;
  std::int64_t bytes = 0;
  const std::vector<KvGroup> groups = kv_groups(spec);
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].window == 0) bytes += cpu_page_bytes(spec, all, static_cast<int>(g));
  return bytes / kPageTokens;
}

}  // namespace tessera
