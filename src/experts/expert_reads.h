// ExpertReads: the bytes of experts' weights that a job needs, each of its experts once.
//
//   ExpertReads reads(parts.expert_bytes, table);
//   bytes.add(reads.bytes(layer, pairs));
//
// Bytes are those of the model's file. No allocation after the constructor. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "experts/expert_table.h"
#include "model/model.h"
#include "quant/block_format.h"

namespace tessera {

// Of one expert of a layer.
inline std::int64_t expert_file_bytes(const Model& model, int layer) {
  std::int64_t bytes = 0;
  for (const TensorRole role : {TensorRole::moe_gate, TensorRole::moe_up, TensorRole::moe_down})
    if (const TensorSlice* slice = model.find(role, layer))
      bytes += slice->rows * row_bytes(slice->type, slice->cols);
  return bytes;
}

class ExpertReads {
 public:
  // `expert_bytes`: of one, by the layers of the table; of layers beyond its end none are known.
  ExpertReads(std::vector<std::int64_t> expert_bytes, const ExpertTable& table)
      : first_layer_(table.first_layer()), expert_bytes_(std::move(expert_bytes)) {
    int most = 0;
    for (int l = table.first_layer(); l < table.end_layer(); ++l)
      most = std::max(most, table.layer(l).experts());
    expert_bytes_.resize(static_cast<std::size_t>(table.end_layer() - first_layer_));
    seen_.resize(static_cast<std::size_t>(most));
  }

  std::uint64_t bytes(int layer, std::span<const RoutedPair> pairs) {
    ++look_;
    std::uint64_t experts = 0;
    for (const RoutedPair& pair : pairs)
      experts +=
          std::exchange(seen_[static_cast<std::size_t>(pair.expert)], look_) != look_ ? 1 : 0;
    const std::int64_t of_one = expert_bytes_[static_cast<std::size_t>(layer - first_layer_)];
    return experts * static_cast<std::uint64_t>(of_one);
  }

 private:
  int first_layer_;
  std::vector<std::int64_t> expert_bytes_;
  std::vector<std::uint64_t> seen_;  // [n_expert], in which look last
  std::uint64_t look_ = 0;
};

}  // namespace tessera
