#include "pipeline/measure_layers.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "base/checked.h"
#include "pipeline/least_times.h"
#include "pipeline/thread_binding.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRunUnits = 4;  // of the shard of several units
// What a step costs besides its layers comes from differences of times; it is never all of a unit.
constexpr double kMostCallShare = 0.9;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

StepTime difference(const StepTime& a, const StepTime& b) {
  return {.prompt_row_s = a.prompt_row_s - b.prompt_row_s, .token_s = a.token_s - b.token_s};
}

// A loaded shard with one sequence of made-up rows.
class Rig {
 public:
  Rig(const Model& model, const ShardLayout& layout, std::unique_ptr<Shard> shard)
      : layout_(layout), shard_(std::move(shard)) {
    piece_.allocate({.max_rows = layout.max_rows, .n_embd = model.spec().n_embd});
    std::mt19937 random(20240229);  // the same rows for every device
    std::uniform_int_distribution<TokenId> token(0, model.spec().n_token - 1);
    for (int i = 0; i < layout.max_rows; ++i) tokens_.push_back(token(random));
    std::normal_distribution<float> value;
    hidden_.resize(static_cast<std::size_t>(layout.max_rows) *
                   static_cast<std::size_t>(model.spec().n_embd));
    std::generate(hidden_.begin(), hidden_.end(), [&] { return value(random); });
    for (const int pages : layout.kv_pages) {
      std::vector<std::int32_t>& table = pages_.emplace_back();
      for (int page = 0; page < pages; ++page) table.push_back(page);
    }
    tables_.assign(pages_.begin(), pages_.end());
  }

  // The least times of a piece, by row, and of the single row after it. `spread` is raised to
  // theirs.
  Result<StepTime> measure(double& spread) {
    const int rows = layout_.max_rows;
    LeastTimes times;
    for (bool first = true; !times.enough(); first = false) {
      TESSERA_ASSIGN(const double piece_s, run({.n_rows = rows}));
      TESSERA_ASSIGN(const double row_s, run({.n_rows = 1, .first_position = rows}));
      if (!first) times.add(piece_s, row_s);  // memory and caches come into their usual state
    }
    spread = std::max(spread, times.spread());
    return StepTime{.prompt_row_s = times.piece_s() / rows, .token_s = times.row_s()};
  }

 private:
  Result<double> run(const SequenceRows& rows) {
    sequence_ = rows;
    sequence_.pages = tables_;
    // A device with the head tells by its logits that it is done.
    logit_row_ = rows.n_rows - 1;
    BatchView batch{.tokens = std::span(tokens_).first(static_cast<std::size_t>(rows.n_rows)),
                    .sequences = {&sequence_, 1}};
    if (layout_.head) batch.logit_rows = {&logit_row_, 1};
    piece_.changes.clear();
    if (rows.first_position == 0) piece_.changes.push_back({.kind = StateChange::Kind::reset_slot});
    piece_.take(batch, {0, rows.n_rows});
    std::copy_n(hidden_.begin(), piece_.hidden().size(), piece_.hidden().begin());
    const Clock::time_point begin = Clock::now();
    TESSERA_TRY(shard_->prepare(piece_));
    TESSERA_TRY(shard_->start(piece_));
    TESSERA_TRY(shard_->finish(piece_, [] {}));
    if (layout_.head) shard_->logits();
    // A clock that stood still would make a layer that costs nothing.
    return std::max(seconds_since(begin), 1e-9);
  }

  ShardLayout layout_;
  std::unique_ptr<Shard> shard_;
  Piece piece_;
  std::vector<TokenId> tokens_;
  std::vector<float> hidden_;
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<std::span<const std::int32_t>> tables_;
  SequenceRows sequence_;
  std::int32_t logit_row_ = 0;
};

class Measurement {
 public:
  Measurement(const Model& model, const MeasureOptions& options, const ShardMaker& open)
      : model_(model), options_(options), open_(open), units_(layer_units(model)) {}

  Result<MeasuredLayers> run() {
    TESSERA_TRY(measure_kinds());
    TESSERA_TRY(measure_call());
    LayerTimes times{.call = call_};
    if (options_.head) TESSERA_TRY(measure_head(times));
    for (const LayerUnit& unit : units_) {
      // A kind that stands only where the device has none of it was not measured.
      const auto found = kinds_.find(unit.kind);
      const StepTime whole = difference(found != kinds_.end() ? found->second : longest(), call_);
      const int n = unit.layers.size();
      times.layers.insert(times.layers.end(), static_cast<std::size_t>(n),
                          {.prompt_row_s = whole.prompt_row_s / n, .token_s = whole.token_s / n});
    }
    return MeasuredLayers{.times = std::move(times), .spread = spread_};
  }

 private:
  ShardLayout layout(LayerRange layers) const {
    const ModelSpec& spec = model_.spec();
    ShardLayout layout{
        .first_layer = layers.begin,
        .end_layer = layers.end,
        .embedding = layers.begin == 0,
        .head = layers.end == spec.n_layer(),
        .max_rows = std::max(1, std::min(options_.piece_rows, spec.context_length - 1)),
        .max_logit_rows = 1,
        .slots = 1,
        .kv_type = options_.kv_type,
        .f32_weights = options_.f32_weights};
    layout.context = layout.max_rows + 1;
    layout.kv_pages.assign(kv_groups(spec).size(), ceil_div(layout.context, kPageTokens));
    return layout;
  }

  Result<StepTime> measure(LayerRange layers) {
    const ShardLayout wanted = layout(layers);
    // The plan may fit all the same, where some weights stay in the file.
    if (options_.fits && !options_.fits(wanted))
      return Error::make(ErrorCode::exhausted, "its memory does not hold all weights of {}",
                         layers.size() == 1
                             ? fmt::format("layer {}", layers.begin)
                             : fmt::format("layers {}-{}", layers.begin, layers.end - 1));
    TESSERA_ASSIGN(std::unique_ptr<Shard> shard, open_(wanted));
    TESSERA_TRY(shard->load(model_, {}));
    return Rig(model_, wanted, std::move(shard)).measure(spread_);
  }

  // The unit of each kind that stands for it: one without embedding and head where there is one,
  // and none with the head if the device is not to have that.
  Status measure_kinds() {
    std::map<int, LayerUnit> chosen;
    for (const LayerUnit& unit : units_) {
      const bool is_last = unit.layers.end == model_.spec().n_layer();
      if (is_last && !options_.head && !chosen.empty()) continue;
      const auto [at, is_new] = chosen.emplace(unit.kind, unit);
      if (!is_new && at->second.layers.begin == 0 && !is_last) at->second = unit;
    }
    for (const auto& [kind, unit] : chosen) {
      TESSERA_ASSIGN(kinds_[kind], measure(unit.layers));
    }
    head_alone_ = chosen.contains(units_.back().kind) &&
                  chosen[units_.back().kind].layers.end < model_.spec().n_layer();
    return {};
  }

  // The sum of single units has the cost of a call for each, a shard of all of them has it once.
  Status measure_call() {
    const int inner = static_cast<int>(units_.size()) - 1;  // without the unit before the head
    for (int n = std::min(kRunUnits, inner); n > 1; --n) {
      const auto first = static_cast<std::size_t>(inner > n ? 1 : 0);
      const auto last = first + static_cast<std::size_t>(n) - 1;
      const LayerRange layers{units_[first].layers.begin, units_[last].layers.end};
      if (options_.fits && !options_.fits(layout(layers))) continue;
      TESSERA_ASSIGN(const StepTime run, measure(layers));
      StepTime sum, least = kinds_.at(units_[first].kind);
      for (std::size_t i = first; i <= last; ++i) sum += kinds_.at(units_[i].kind);
      for (const auto& [kind, time] : kinds_) {
        least.prompt_row_s = std::min(least.prompt_row_s, time.prompt_row_s);
        least.token_s = std::min(least.token_s, time.token_s);
      }
      const auto share = [&](double sum_s, double run_s, double least_s) {
        return std::clamp((sum_s - run_s) / (n - 1), 0.0, kMostCallShare * least_s);
      };
      call_ = {.prompt_row_s = share(sum.prompt_row_s, run.prompt_row_s, least.prompt_row_s),
               .token_s = share(sum.token_s, run.token_s, least.token_s)};
      return {};
    }
    return {};  // too few layers or too little memory: a call counts as a part of its layer
  }

  // What the last unit takes with the head, less what such a unit takes without it. Where only the
  // last one is of its kind, its time has the head's in it.
  Status measure_head(LayerTimes& times) {
    if (!head_alone_) return {};
    const LayerUnit& last = units_.back();
    TESSERA_ASSIGN(const StepTime with, measure(last.layers));
    times.head_s = std::max(0.0, with.token_s - kinds_.at(last.kind).token_s);
    return {};
  }

  StepTime longest() const {
    StepTime most;
    for (const auto& [kind, time] : kinds_) {
      most.prompt_row_s = std::max(most.prompt_row_s, time.prompt_row_s);
      most.token_s = std::max(most.token_s, time.token_s);
    }
    return most;
  }

  const Model& model_;
  const MeasureOptions& options_;
  const ShardMaker& open_;
  std::vector<LayerUnit> units_;
  std::map<int, StepTime> kinds_;  // of a shard of one unit
  StepTime call_;
  double spread_ = 0.0;
  bool head_alone_ = false;  // the last unit's kind was measured without the head
};

}  // namespace

Result<MeasuredLayers> measure_layers(const Model& model, const MeasureOptions& options,
                                      const ShardMaker& open) {
  ThreadBinding binding;
  binding.bind(std::span(options.cpus).first(options.cpus.empty() ? 0 : 1));
  Result<MeasuredLayers> measured = Measurement(model, options, open).run();
  binding.restore();
  return measured;
}

}  // namespace tessera
