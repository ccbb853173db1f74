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
        "{}: an expert crosses in {:.1f} us; the host takes {:.1f} us for one, {:.1f} us a pair "
        "and {:.1f} us a call",
        device.name(), device.stream_us(layer, 1), pace.expert_us, pace.pair_us, pace.call_us);
  }
  stream_choice_ = StreamChoice(options_.stream, pace);
  divide_reads(device, device.stream_us(layer, 1));
  return {};
}

void Dispatcher::divide_reads(Device& device, double link_us) const {
  std::vector<std::uint8_t> reads;
  for (int lacking = 0; lacking <= most_used_; ++lacking)
    reads.push_back(static_cast<std::uint8_t>(stream_choice_.reads(lacking, link_us)));
  device.divide_reads(reads);
  if (options_.stream == ExpertStream::automatic)
    log_info("{}: of {} experts away that a row wants it reads {} over the link", device.name(),
             most_used_, reads.back());
}

// From jobs of one row with several experts and with fewer, and of several rows; each with other
// experts, which no cache has.
Result<HostPace> Dispatcher::host_pace(int layer, std::span<const std::uint8_t> experts) {
  constexpr int kTries = 5, kTriesOfOne = 24;  // with either of two teams (HostExecutor)
  constexpr int kMostExperts = 8, kMostRows = 32;
  Group& host = *groups_.front();
  const auto n = static_cast<std::size_t>(n_embd_);
  const ExpertLimits limits = host.executor->limits();
  const auto rows = static_cast<std::size_t>(std::clamp(limits.max_rows, 1, kMostRows));
  const auto most = std::clamp<std::size_t>(limits.max_pairs / rows, 1, kMostExperts);
  std::vector<int> can;
  for (int e = 0; e < static_cast<int>(experts.size()); ++e)
    if (experts[static_cast<std::size_t>(e)] != 0) can.push_back(e);
  const std::size_t each = std::min(most, can.size());
  for (std::size_t i = 0; i < rows * n; ++i) host.inputs[i] = static_cast<float>(i % 7) - 3.0f;
  std::vector<RoutedPair> pairs;
  std::size_t next = 0;
  const auto least_us = [&](std::size_t count, std::size_t used) -> Result<double> {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < (count == 1 ? kTriesOfOne : kTries); ++i, next += used) {
      pairs.clear();
      for (std::size_t row = 0; row < count; ++row)
        for (std::size_t e = 0; e < used; ++e)
          pairs.push_back({.row = static_cast<std::int32_t>(row),
                           .expert = can[(next + e) % can.size()],
                           .weight = 1.0f});
      const auto start = Clock::now();
      TESSERA_TRY(host.executor->submit({.layer = layer,
                                         .n_rows = static_cast<int>(count),
                                         .rows = std::span(host.inputs).first(count * n),
                                         .pairs = pairs}));
      const Result<ExpertReport> report =
          host.executor->collect(std::span(host.sums).first(count * n));
      if (!report) return report.error();
      const std::chrono::duration<double, std::micro> spent = Clock::now() - start;
      least = std::min(least, spent.count());
    }
    return least;
  };
  const std::size_t fewer = each / 4;  // far from `each`, for a slope that noise changes little
  TESSERA_ASSIGN(const double all, least_us(rows, each));
  TESSERA_ASSIGN(const double one, least_us(1, each));
  TESSERA_ASSIGN(const double few, least_us(1, fewer));
  const double more = static_cast<double>((rows - 1) * each);
  const double pair_us = more > 0 ? std::max(0.0, all - one) / more : 0.0;
  const double both_us = std::max(0.0, one - few) / static_cast<double>(each - fewer);
  return HostPace{.call_us = std::max(0.0, one - static_cast<double>(each) * both_us),
                  .expert_us = std::max(0.0, both_us - pair_us),
                  .pair_us = std::min(pair_us, both_us)};
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
