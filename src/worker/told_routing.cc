#include "worker/told_routing.h"

namespace tessera::worker {

ToldRouting::ToldRouting(const Hello& hello, RoutingCounts* counts) : counts_(counts) {
  if (counts == nullptr) return;
  news_.resize(hello.dims.n_expert);
  for (auto l = static_cast<int>(hello.first_layer); std::cmp_less(l, hello.end_layer); ++l)
    if (const int n = counts->n_expert(l); n > 0)
      layers_.push_back(
          {.number = l, .told = std::vector<std::uint64_t>(static_cast<std::size_t>(n))});
}

// Of layers_, or their number.
std::size_t ToldRouting::next() const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t at = (turn_ + i) % layers_.size();
    if (layers_[at].asked_at != rows_) return at;
  }
  return layers_.size();
}

std::optional<std::uint16_t> ToldRouting::ask() {
  const std::size_t at = next();
  if (at == layers_.size()) return std::nullopt;
  asked_ = at;
  rows_asked_ = rows_;
  return static_cast<std::uint16_t>(layers_[at].number);
}

Status ToldRouting::take(std::span<const std::byte> body) {
  Layer& layer = layers_[asked_];
  TESSERA_TRY(decode_routed(body, news_));
  std::uint64_t pairs = layer.pairs;
  for (std::size_t e = 0; e < news_.size(); ++e) {
    const std::uint64_t left = e < layer.told.size() ? rows_ - layer.told[e] : 0;
    if (news_[e] > left)
      return Error::make(ErrorCode::invalid,
                         "ROUTED with expert {} of layer {} chosen {} times more in {} rows", e,
                         layer.number, news_[e], rows_);
    pairs += news_[e];
  }
  if (pairs > rows_ * static_cast<std::uint64_t>(counts_->n_used(layer.number)))
    return Error::make(ErrorCode::invalid, "ROUTED with {} choices of layer {} in {} rows", pairs,
                       layer.number, rows_);
  layer.pairs = pairs;
  for (std::size_t e = 0; e < layer.told.size(); ++e) layer.told[e] += news_[e];
  counts_->add(layer.number, std::span<const std::uint32_t>(news_).first(layer.told.size()));
  layer.asked_at = rows_asked_;
  turn_ = (asked_ + 1) % layers_.size();
  return {};
}

}  // namespace tessera::worker
