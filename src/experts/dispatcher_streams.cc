// Pairs away that the device computes itself, with experts that it fetches for the step; and what
// it foresees of the others.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/pause.h"
#include "experts/dispatcher_group.h"

namespace tessera {
namespace {

using std::chrono::microseconds;

// What a device's layer leaves between an answer and the next question, at least, and what a layer
// in between adds that has all of its experts.
constexpr microseconds kAhead{40}, kWholeLayer{20};

// On the average of the layers that ask.
microseconds time_ahead(const ExpertTable& table) {
  int first = 0, last = 0, asking = 0;
  for (int layer = table.first_layer(); layer < table.end_layer(); ++layer) {
    if (table.layer(layer).all_resident()) continue;
    if (asking++ == 0) first = layer;
    last = layer;
  }
  const int between = last - first + 1 - asking;
  return kAhead + (asking > 1 ? between * kWholeLayer / (asking - 1) : microseconds{0});
}

// Not where workers have all that is away, or the device reads it all: to foresee takes it time.
bool asks_host(const ExpertTable& table, int layer, bool reads_all, Device& device) {
  if (reads_all && !device.streamable(layer).empty()) return false;
  const LayerHomes& homes = table.layer(layer);
  for (int expert = 0; expert < homes.experts(); ++expert)
    if (homes.home(expert).is_host()) return true;
  return false;
}

// A layer is foreseen while the device waits for one before.
bool foreseeing_pays(const ExpertTable& table, bool reads_all, Device& device) {
  bool waits = false;
  for (int layer = table.first_layer(); layer < table.end_layer(); ++layer) {
    if (waits && asks_host(table, layer, reads_all, device)) return true;
    waits |= !table.layer(layer).all_resident();
  }
  return false;
}

}  // namespace

Status Dispatcher::prepare(Device& device) {
  foresees_ = options_.foresee &&
              foreseeing_pays(table_, options_.stream == ExpertStream::on, device) &&
              device.foresee_experts();
  return measure_streams(device);
}

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
        "{}: the host alone computes the experts of {} of {} layers, for want of pinned memory",
        device.name(), lacking, planned);
  if (layer < 0) return {};
  HostPace pace, row;
  const microseconds ahead = foresees_ ? time_ahead(table_) : microseconds{0};
  if (options_.stream == ExpertStream::automatic) {
    TESSERA_ASSIGN(pace, host_pace(layer, device.streamable(layer), microseconds{0}));
    row = pace;
    if (foresees_) {
      TESSERA_ASSIGN(row, host_pace(layer, device.streamable(layer), ahead));
    }
    log_info(
        "{}: an expert crosses in {:.1f} us; the host takes {:.1f} us for one, {:.1f} us a pair "
        "and {:.1f} us a call",
        device.name(), device.stream_us(layer, 1), pace.expert_us, pace.pair_us, pace.call_us);
  }
  stream_choice_ = StreamChoice(options_.stream, pace, row, static_cast<double>(ahead.count()));
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
// experts, which no cache has but for what is read `ahead` of a row.
Result<HostPace> Dispatcher::host_pace(int layer, std::span<const std::uint8_t> experts,
                                       microseconds ahead) {
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
  for (std::size_t i = 0; i < rows * n; ++i) host.inputs[i] = static_cast<float>(i % 7) - 3.0f;
  std::vector<RoutedPair> pairs;
  std::size_t next = 0;
  const auto read_ahead = [&] {
    foreseen_.clear();
    for (const RoutedPair& pair : pairs) foreseen_.push_back(pair.expert);
    host.executor->foresee(layer, foreseen_);
    for (const auto end = Clock::now() + ahead; Clock::now() < end;) pause();
  };
  const auto job_us = [&](std::size_t count, std::size_t used) -> Result<double> {
    pairs.clear();
    for (std::size_t row = 0; row < count; ++row)
      for (std::size_t e = 0; e < used; ++e)
        pairs.push_back({.row = static_cast<std::int32_t>(row),
                         .expert = can[(next + e) % can.size()],
                         .weight = 1.0f});
    next += used;
    if (ahead.count() > 0 && count == 1) read_ahead();
    TESSERA_TRY(host.executor->submit({.layer = layer,
                                       .n_rows = static_cast<int>(count),
                                       .rows = std::span(host.inputs).first(count * n),
                                       .pairs = pairs}));
    TESSERA_ASSIGN(const ExpertReport report,
                   host.executor->collect(std::span(host.sums).first(count * n)));
    return static_cast<double>(report.compute_us);
  };
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // Few are far from many, for a slope that noise changes little.
  HostTimes times{.many = std::min(most, can.size()),
                  .few = std::min(most, can.size()) / 4,
                  .rows = rows,
                  .many_us = kNone,
                  .few_us = kNone,
                  .rows_us = kNone};
  const auto keep = [](double& least, double us) { least = std::min(least, us); };
  for (int i = 0; i < kTries; ++i) {
    TESSERA_ASSIGN(const double us, job_us(rows, times.many));
    keep(times.rows_us, us);
  }
  for (int i = 0; i < kTriesOfOne; ++i) {
    TESSERA_ASSIGN(const double many_us, job_us(1, times.many));
    TESSERA_ASSIGN(const double few_us, job_us(1, times.few));
    keep(times.many_us, many_us);
    keep(times.few_us, few_us);
  }
  return times.pace();
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
  metrics_->streamed_ahead.add(static_cast<std::uint64_t>(now.ahead - before.ahead));
}

// --- Experts foreseen ---

void Dispatcher::foresee(Device& device) {
  foreseen_layer_ = -1;
  if (!foresees_) return;
  const ForeseenExperts next = device.foreseen();
  foreseen_.clear();
  for (const std::int32_t expert : next.experts)
    if (table_.layer(next.layer).home(expert).is_host() &&
        std::find(foreseen_.begin(), foreseen_.end(), expert) == foreseen_.end())
      foreseen_.push_back(expert);
  if (!foreseen_.empty() && groups_.front()->executor->foresee(next.layer, foreseen_))
    foreseen_layer_ = next.layer;
}

void Dispatcher::count_foreseen(int layer) {
  read_ahead_ = std::exchange(foreseen_layer_, -1) == layer;
  if (metrics_ == nullptr || !read_ahead_) return;
  for (const RoutedPair& pair : split_.of_host()) {
    const bool seen = std::find(foreseen_.begin(), foreseen_.end(), pair.expert) != foreseen_.end();
    (seen ? metrics_->foreseen : metrics_->unforeseen).add();
  }
}

}  // namespace tessera
