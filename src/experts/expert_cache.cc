#include "experts/expert_cache.h"

#include <algorithm>
#include <limits>

namespace tessera {
namespace {

// Candidates that a layer remembers between two steps.
constexpr std::size_t kCandidates = 64;

}  // namespace

ExpertCache::ExpertCache(ExpertTable& table, const ExpertCacheOptions& options)
    : table_(table), options_(options) {
  for (int l = table.first_layer(); l < table.end_layer(); ++l) {
    Layer& layer = layers_.emplace_back();
    const LayerHomes& homes = table.layer(l);
    if (homes.spare() == 0) continue;  // it has no places to fill
    layer.count.resize(static_cast<std::size_t>(homes.experts()));
    layer.useful.resize(layer.count.size());
    layer.guests.reserve(static_cast<std::size_t>(homes.spare()));
    layer.candidates.reserve(kCandidates);
  }
}

void ExpertCache::observe(int number, std::span<const RoutedPair> pairs) {
  hits_ = misses_ = 0;
  Layer& layer = layer_at(number);
  if (layer.count.empty() || pairs.empty()) return;
  // The experts of one row are different, so the first row's pairs tell how many a row has.
  int used = 0;
  while (static_cast<std::size_t>(used) < pairs.size() &&
         pairs[static_cast<std::size_t>(used)].row == pairs[0].row)
    ++used;
  layer.window_pairs = options_.window_rows * used;
  const LayerHomes& homes = table_.layer(number);
  for (const RoutedPair& pair : pairs) {
    std::uint16_t& count = layer.count[static_cast<std::size_t>(pair.expert)];
    if (count < std::numeric_limits<std::uint16_t>::max()) ++count;
    if (homes.home(pair.expert).is_resident()) {
      hits_ += homes.planned(pair.expert).is_resident() ? 0 : 1;
      layer.useful[static_cast<std::size_t>(pair.expert)] = 1;
    } else {
      ++misses_;
      if (count >= options_.admit_count) propose(layer, pair.expert);
    }
    if (++layer.pairs >= layer.window_pairs) halve(layer);
  }
}

// Where there is no room, in the place of the one that is wanted least.
void ExpertCache::propose(Layer& layer, std::int32_t expert) {
  std::vector<std::int32_t>& all = layer.candidates;
  if (std::find(all.begin(), all.end(), expert) != all.end()) return;
  if (all.size() < kCandidates) return all.push_back(expert);
  const auto count = [&](std::int32_t of) { return layer.count[static_cast<std::size_t>(of)]; };
  const auto least = std::min_element(
      all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) { return count(a) < count(b); });
  if (count(expert) > count(*least)) *least = expert;
}

// Who is wanted too seldom now is no candidate any longer.
void ExpertCache::halve(Layer& layer) const {
  for (std::uint16_t& count : layer.count) count = static_cast<std::uint16_t>(count / 2);
  layer.pairs = 0;
  std::erase_if(layer.candidates, [&](std::int32_t expert) {
    return layer.count[static_cast<std::size_t>(expert)] < options_.admit_count;
  });
}

std::optional<ExpertMove> ExpertCache::best_of(int number, const Layer& layer, int& gain) const {
  const LayerHomes& homes = table_.layer(number);
  std::optional<ExpertMove> best;
  std::int32_t victim = -1;
  int victim_count = 0;
  if (homes.spare() == 0) {
    for (const std::int32_t guest : layer.guests) {
      const int count = layer.count[static_cast<std::size_t>(guest)];
      if (victim < 0 || count < victim_count) {
        victim = guest;
        victim_count = count;
      }
    }
    if (victim < 0) return best;
  }
  for (const std::int32_t expert : layer.candidates) {
    if (homes.home(expert).is_resident()) continue;
    const int count = layer.count[static_cast<std::size_t>(expert)];
    if (count < options_.admit_count || count <= victim_count * options_.advantage) continue;
    if (count - victim_count <= gain) continue;
    gain = count - victim_count;
    best = ExpertMove{.layer = number, .expert = expert, .evicted = victim};
  }
  return best;
}

std::optional<ExpertMove> ExpertCache::next() {
  std::optional<ExpertMove> best;
  if (stopped_) return best;
  int gain = 0;
  for (int l = table_.first_layer(); l < table_.end_layer(); ++l) {
    const Layer& layer = layer_at(l);
    if (layer.candidates.empty()) continue;
    if (const std::optional<ExpertMove> better = best_of(l, layer, gain)) best = better;
  }
  return best;
}

bool ExpertCache::begin(const ExpertMove& move) {
  if (move.evicted < 0) return true;
  Layer& layer = layer_at(move.layer);
  table_.layer(move.layer).release(move.evicted);
  std::erase(layer.guests, move.evicted);
  return layer.useful[static_cast<std::size_t>(move.evicted)] != 0;
}

void ExpertCache::done(const ExpertMove& move) {
  Layer& layer = layer_at(move.layer);
  table_.layer(move.layer).admit(move.expert);
  std::erase(layer.candidates, move.expert);
  layer.guests.push_back(move.expert);
  layer.useful[static_cast<std::size_t>(move.expert)] = 0;
}

}  // namespace tessera
