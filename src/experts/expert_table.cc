#include "experts/expert_table.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

int worker_count(const ShardLayout& layout) {
  int count = 0;
  for (const LayerExperts& experts : layout.experts)
    for (const ExpertHome home : experts.home)
      if (home.is_worker()) count = std::max(count, home.worker() + 1);
  return count;
}

LayerHomes::LayerHomes(const LayerExperts& planned)
    : planned_(planned.home),
      now_(planned.home),
      away_(static_cast<int>(planned.home.size()) - planned.resident()),
      spare_(planned.spare) {}

void LayerHomes::release(int expert) {
  ExpertHome& home = now_[static_cast<std::size_t>(expert)];
  CHECK(home.is_resident(), "expert {} is not resident", expert);
  home = planned(expert).is_resident() ? ExpertHome::host() : planned(expert);
  ++spare_;
  ++away_;
}

void LayerHomes::admit(int expert) {
  ExpertHome& home = now_[static_cast<std::size_t>(expert)];
  CHECK(!home.is_resident(), "expert {} is resident already", expert);
  CHECK(spare_ > 0, "no spare place for expert {}", expert);
  home = ExpertHome::resident();
  --spare_;
  --away_;
}

ExpertTable::ExpertTable(const ShardLayout& layout)
    : first_layer_(layout.first_layer), workers_(worker_count(layout)) {
  for (int l = layout.first_layer; l < layout.end_layer; ++l) {
    const LayerExperts* experts = layout.layer_experts(l);
    layers_.push_back(experts == nullptr ? LayerHomes() : LayerHomes(*experts));
  }
}

void PairSplit::reserve(const ExpertTable& table, std::size_t max_pairs) {
  away_.resize(static_cast<std::size_t>(table.workers()) + 1);
  resident_.reserve(max_pairs);
  streamed_.reserve(max_pairs);
  int experts = 0;
  for (int l = table.first_layer(); l < table.end_layer(); ++l)
    experts = std::max(experts, table.layer(l).experts());
  seen_.resize(static_cast<std::size_t>(experts));
  for (auto& pairs : away_) pairs.reserve(max_pairs);
}

void PairSplit::assign(const LayerHomes& homes, std::span<const RoutedPair> pairs) {
  resident_.clear();
  streamed_.clear();
  for (auto& list : away_) list.clear();
  for (const RoutedPair& pair : pairs) {
    const ExpertHome home = homes.home(pair.expert);
    if (home.is_resident())
      resident_.push_back(pair);
    else if (pair.fetched)
      streamed_.push_back(pair);
    else
      away_[home.is_host() ? 0 : static_cast<std::size_t>(home.worker()) + 1].push_back(pair);
  }
  n_away_ = pairs.size() - resident_.size();
}

// From the end, so that the host's list grows in its place.
void PairSplit::give_to_host(int worker) {
  std::vector<RoutedPair>& host = away_[0];
  std::vector<RoutedPair>& given = away_[static_cast<std::size_t>(worker) + 1];
  std::size_t own = host.size(), left = given.size();
  host.resize(own + left);
  while (left > 0) {
    const bool own_is_last = own > 0 && host[own - 1].row > given[left - 1].row;
    const std::size_t at = own + left - 1;
    host[at] = own_is_last ? host[--own] : given[--left];
  }
  given.clear();
}

StreamChoice::Work PairSplit::streamable(std::span<const std::uint8_t> experts) {
  std::fill(seen_.begin(), seen_.end(), std::uint8_t{0});
  StreamChoice::Work work;
  for (const RoutedPair& pair : of_host()) {
    const auto expert = static_cast<std::size_t>(pair.expert);
    if (experts[expert] == 0) continue;
    ++work.pairs;
    work.experts += seen_[expert] == 0 ? 1 : 0;
    seen_[expert] = 1;
  }
  return work;
}

void PairSplit::give_to_device(std::span<const std::uint8_t> experts) {
  std::vector<RoutedPair>& host = away_[0];
  const auto kept = std::remove_if(host.begin(), host.end(), [&](const RoutedPair& pair) {
    const bool given = experts[static_cast<std::size_t>(pair.expert)] != 0;
    if (given) streamed_.push_back(pair);
    return given;
  });
  host.erase(kept, host.end());
}

}  // namespace tessera
