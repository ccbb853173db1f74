// Pairs away that the device computes itself, with experts that it fetches for the step.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "experts/dispatcher_group.h"

namespace tessera {

Status Dispatcher::measure_streams(Device& device) {
  if (options_.stream == ExpertStream::off) return {};
  int planned = 0, lacking = 0, layer = -1;
  for (std::size_t l = 0; l < streamed_layers_.size(); ++l) {
    if (!streamed_layers_[l]) continue;
    ++planned;
    const int number = table_.first_layer() + static_cast<int>(l);
    if (device.streamable(number).empty())
      ++lacking;
    else if (layer < 0)
      layer = number;
  }
  if (lacking > 0 && metrics_ != nullptr)
    metrics_->unstreamed_layers.add(static_cast<std::uint64_t>(lacking));
  if (lacking > 0)
    log_warn(
        "{}: the host computes the experts of {} of {} layers for prompts too, for want of "
        "pinned memory",
        device.name(), lacking, planned);
  if (layer < 0) return {};
  HostPace pace;
  if (options_.stream == ExpertStream::automatic) {
    TESSERA_ASSIGN(pace, host_pace(layer, device.streamable(layer)));
    log_info(
        "{}: an expert crosses in {:.1f} us; the host takes {:.1f} us for one and {:.1f} us "
        "a pair",
        device.name(), device.stream_us(layer, 1), pace.expert_us, pace.pair_us);
  }
  stream_choice_ = StreamChoice(options_.stream, pace);
  return {};
}

// From jobs of one row and of several, with the same few experts.
Result<HostPace> Dispatcher::host_pace(int layer, std::span<const std::uint8_t> experts) {
  constexpr int kTries = 3;
  constexpr int kMostExperts = 8, kMostRows = 32;
  Group& host = *groups_.front();
  const auto n = static_cast<std::size_t>(n_embd_);
  const ExpertLimits limits = host.executor->limits();
  const auto rows = static_cast<std::size_t>(std::clamp(limits.max_rows, 1, kMostRows));
  const auto most = std::clamp<std::size_t>(limits.max_pairs / rows, 1, kMostExperts);
  std::vector<int> chosen;
  for (int e = 0; e < static_cast<int>(experts.size()) && chosen.size() < most; ++e)
    if (experts[static_cast<std::size_t>(e)] != 0) chosen.push_back(e);
  const std::size_t each = chosen.size();
  std::vector<RoutedPair> pairs;
  for (std::size_t row = 0; row < rows; ++row)
    for (const int expert : chosen)
      pairs.push_back({.row = static_cast<std::int32_t>(row), .expert = expert, .weight = 1.0f});
  for (std::size_t i = 0; i < rows * n; ++i) host.inputs[i] = static_cast<float>(i % 7) - 3.0f;
  const auto least_us = [&](std::size_t count) -> Result<double> {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTries; ++i) {
      TESSERA_TRY(host.executor->submit({.layer = layer,
                                         .n_rows = static_cast<int>(count),
                                         .rows = std::span(host.inputs).first(count * n),
                                         .pairs = std::span(pairs).first(count * each)}));
      TESSERA_ASSIGN(const ExpertReport report,
                     host.executor->collect(std::span(host.sums).first(count * n)));
      least = std::min(least, static_cast<double>(report.compute_us));
    }
    return least;
  };
  TESSERA_ASSIGN(const double one, least_us(1));
  TESSERA_ASSIGN(const double all, least_us(rows));
  const double more = static_cast<double>((rows - 1) * each);
  const double pair_us = more > 0 ? std::max(0.0, all - one) / more : 0.0;
  return HostPace{.expert_us = std::max(0.0, one / static_cast<double>(each) - pair_us),
                  .pair_us = pair_us};
}

// Where the device takes some of a layer's pairs, it takes all that it can.
void Dispatcher::choose_stream(Device& device, int layer, int rows) {
  if (options_.stream == ExpertStream::off || split_.of_host().empty()) return;
  const std::span<const std::uint8_t> experts = device.streamable(layer);
  if (experts.empty() || rows < device.least_streamed_rows()) return;
  const StreamChoice::Work work = split_.streamable(experts);
  if (stream_choice_.streams(work, device.stream_us(layer, work.experts)))
    split_.give_to_device(experts);
}

void Dispatcher::fetch_streamed(Device& device, int layer) {
  const std::span<const RoutedPair> pairs = split_.streamed();
  if (pairs.empty()) return;
  device.stream_experts(layer, pairs);
  if (metrics_ == nullptr) return;
  const StreamedExperts now = device.streamed();
  const auto before = std::exchange(streamed_before_, now);
  metrics_->pairs_streamed.add(pairs.size());
  metrics_->expert_bytes_streamed.add(reads_.bytes(layer, pairs));
  metrics_->streamed_experts.add(static_cast<std::uint64_t>(now.experts - before.experts));
  metrics_->streamed_bytes.add(static_cast<std::uint64_t>(now.bytes - before.bytes));
}

}  // namespace tessera
