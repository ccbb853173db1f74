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
    if (table.spare(l) == 0) continue;  // it has no places to fill
    layer.count.resize(static_cast<std::size_t>(table.experts(l)));
    layer.useful.resize(layer.count.size());
    layer.guests.reserve(static_cast<std::size_t>(table.spare(l)));
    layer.candidates.reserve(kCandidates);
  }
}

void ExpertCache::observe(int number, std::span<const RoutedPair> pairs) {
  hits_ = 0;
  Layer& layer = layer_at(number);
  if (layer.count.empty() || pairs.empty()) return;
  // The experts of one row are different, so the first row's pairs tell how many a row has.
  int used = 0;
  while (static_cast<std::size_t>(used) < pairs.size() &&
         pairs[static_cast<std::size_t>(used)].row == pairs[0].row)
    ++used;
  layer.window_pairs = options_.window_rows * used;
  for (const RoutedPair& pair : pairs) {
    std::uint16_t& count = layer.count[static_cast<std::size_t>(pair.expert)];
    if (count < std::numeric_limits<std::uint16_t>::max()) ++count;
    if (table_.home(number, pair.expert).is_resident()) {
      hits_ += table_.planned(number, pair.expert).is_resident() ? 0 : 1;
      layer.useful[static_cast<std::size_t>(pair.expert)] = 1;
    } else if (count >= options_.admit_count && layer.candidates.size() < kCandidates &&
               std::find(layer.candidates.begin(), layer.candidates.end(), pair.expert) ==
                   layer.candidates.end()) {
      layer.candidates.push_back(pair.expert);
    }
    if (++layer.pairs >= layer.window_pairs) halve(layer);
  }
}

// Who is wanted too seldom now is no candidate any longer.
void ExpertCache::halve(Layer& layer) const {
  for (std::uint16_t& count : layer.count) count = static_cast<std::uint16_t>(count / 2);
  layer.pairs = 0;
  std::erase_if(layer.candidates, [&](std::int32_t expert) {
    return layer.count[static_cast<std::size_t>(expert)] < options_.admit_count;
  });
}

std::optional<ExpertSwap> ExpertCache::best_of(int number, const Layer& layer, int& gain) const {
  std::optional<ExpertSwap> best;
  std::int32_t victim = -1;
  int victim_count = 0;
  if (table_.spare(number) == 0) {
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
    if (table_.home(number, expert).is_resident()) continue;
    const int count = layer.count[static_cast<std::size_t>(expert)];
    if (count < options_.admit_count || count <= victim_count * options_.advantage) continue;
    if (count - victim_count <= gain) continue;
    gain = count - victim_count;
    best = ExpertSwap{.expert = expert, .evicted = victim};
  }
  return best;
}

std::optional<CacheMove> ExpertCache::next() {
  std::optional<CacheMove> best;
  if (stopped_) return best;
  int gain = 0;
  for (int l = table_.first_layer(); l < table_.end_layer(); ++l) {
    const Layer& layer = layer_at(l);
    if (layer.candidates.empty()) continue;
    if (const std::optional<ExpertSwap> swap = best_of(l, layer, gain)) best = CacheMove{l, *swap};
  }
  return best;
}

bool ExpertCache::begin(const CacheMove& move) {
  if (move.swap.evicted < 0) return true;
  Layer& layer = layer_at(move.layer);
  table_.release(move.layer, move.swap.evicted);
  std::erase(layer.guests, move.swap.evicted);
  return layer.useful[static_cast<std::size_t>(move.swap.evicted)] != 0;
}

void ExpertCache::done(const CacheMove& move) {
  Layer& layer = layer_at(move.layer);
  table_.admit(move.layer, move.swap.expert);
  std::erase(layer.candidates, move.swap.expert);
  layer.guests.push_back(move.swap.expert);
  layer.useful[static_cast<std::size_t>(move.swap.expert)] = 0;
}

}  // namespace tessera
