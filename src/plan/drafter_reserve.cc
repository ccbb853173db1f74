#include "plan/drafter_reserve.h"

#include <algorithm>

namespace tessera {

DrafterReserve drafter_reserve(const DrafterSpec& spec, const DrafterUse& use) {
  constexpr std::int64_t kHalf = 2, kFloat = sizeof(float);
  const std::int64_t query = std::int64_t{spec.n_head} * spec.key_dim;
  const std::int64_t mixed = std::int64_t{spec.n_head} * spec.value_dim;
  const std::int64_t key_value = std::int64_t{spec.n_kv_head} * (spec.key_dim + spec.value_dim);
  const std::int64_t features = std::int64_t{spec.captures} * spec.n_embd;
  // Of a row of a block: the residual and its normed copy, the mixer's parts, gate and up, logits.
  const std::int64_t block_row =
      2 * spec.n_embd + query + key_value + mixed + 2 * std::int64_t{spec.n_ff} + use.n_vocab;
  // Of a row of the target: its features, widened, what they are made into, and a layer's share.
  const std::int64_t step_row = features + spec.n_embd + key_value;

  DrafterReserve reserve;
  reserve.rows = std::min(use.context, kDrafterRows) + spec.block_rows;
  const std::int64_t rows = std::int64_t{use.parallel} * reserve.rows;
  reserve.weights = spec.weight_bytes;
  reserve.kv = kHalf * rows * spec.n_layer * key_value;
  reserve.features = kHalf * rows * features;
  reserve.scratch = kFloat * (std::int64_t{use.parallel} * spec.block_rows * block_row +
                              use.step_rows * step_row);
  return reserve;
}

}  // namespace tessera
