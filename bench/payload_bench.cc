// How far 16-bit payloads of experts are from f32, as a table.
//
//   payload_bench GOLDEN_FOLDER MODEL...        e.g. tests/data/golden qwen35moe laguna
//
// Every routed expert is away, and its rows and sums are rounded as they would be on their way to a
// worker and back. For each payload, over the 300 rows of a golden prompt: the largest and the
// median difference of a row's log-probabilities from those of the plain run, how many rows differ
// by more than 2e-2, in how many some layer chose other experts than with f32, and how many of the
// former have no such layer in their own row or one before it. `before` is the largest difference
// of the rows before the first such one, `rows` how many these are. `margin` is the widest choice
// that tipped over first in its row: the weights of the expert that left and of the one that came,
// apart by that share. Types with "rows" and "sums" round only what goes to the worker, or comes
// back.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/log.h"
#include "experts/host_executor.h"
#include "pipeline/pipeline.h"
#include "tests/golden_data.h"
#include "worker/jobs.h"

namespace tessera {
namespace {

using Chosen = std::map<int, float>;  // weight by expert
// By layer, of each row.
using Choices = std::map<int, std::vector<Chosen>>;

worker::WireType wire_type(ExpertPayload payload) {
  if (payload == ExpertPayload::f16) return worker::WireType::f16;
  if (payload == ExpertPayload::int16) return worker::WireType::int16;
  return payload == ExpertPayload::bf16 ? worker::WireType::bf16 : worker::WireType::f32;
}

struct Rounding {
  ExpertPayload payload = ExpertPayload::f32;
  bool rows = true;
  bool sums = true;

  std::string name() const {
    const char* half = rows && sums ? "" : rows ? " rows" : " sums";
    return expert_payload_name(payload) + std::string(half);
  }
};

// The host, seen through a payload.
class RoundingExecutor final : public ExpertExecutor {
 public:
  RoundingExecutor(std::unique_ptr<ExpertExecutor> host, const Rounding& rounding, Choices& seen)
      : host_(std::move(host)),
        rounding_(rounding),
        type_(wire_type(rounding.payload)),
        seen_(seen) {}

  std::string name() const override { return "rounding"; }
  ExpertLimits limits() const override { return host_->limits(); }
  Status submit(const ExpertJob& job) override {
    std::vector<Chosen>& rows = seen_[job.layer];
    rows.resize(static_cast<std::size_t>(job.n_rows));
    for (const RoutedPair& pair : job.pairs)
      rows[static_cast<std::size_t>(pair.row)][pair.expert] = pair.weight;
    rows_.assign(job.rows.begin(), job.rows.end());
    if (rounding_.rows) round(rows_);
    ExpertJob rounded = job;
    rounded.rows = rows_;
    return host_->submit(rounded);
  }
  Result<ExpertReport> collect(std::span<double> sums) override {
    Result<ExpertReport> report = host_->collect(sums);
    // With f32 they travel in f64.
    if (type_ == worker::WireType::f32 || !rounding_.sums) return report;
    bytes_.resize(worker::wire_bytes(type_, sums.size()));
    worker::pack_sums(sums, type_, bytes_);
    worker::unpack_sums(bytes_, type_, sums);
    return report;
  }
  void drop() override { host_->drop(); }

 private:
  void round(std::span<float> values) {
    bytes_.resize(worker::wire_bytes(type_, values.size()));
    worker::pack_rows(values, type_, bytes_);
    worker::unpack_rows(bytes_, type_, values);
  }

  std::unique_ptr<ExpertExecutor> host_;
  Rounding rounding_;
  worker::WireType type_;
  Choices& seen_;
  std::vector<float> rows_;
  std::vector<std::byte> bytes_;
};

// Log-probabilities of all rows of a prompt, [rows][n_vocab]. Without a rounding: the plain run.
Result<std::vector<double>> run(const std::string& path, std::span<const TokenId> ids,
                                const std::optional<Rounding>& rounding, Choices& seen) {
  TESSERA_ASSIGN(const Model model, Model::open(path));
  Inventory inventory = probe_inventory(1);
  if (rounding)
    inventory.expert_workers.push_back({.name = "worker:0", .budget = std::int64_t{1} << 40});
  const int rows = static_cast<int>(ids.size());
  TESSERA_ASSIGN(const Plan plan, make_plan(model, inventory,
                                            {.context = rows,
                                             .prefill_chunk = rows,
                                             .logit_rows = rows,
                                             .expert_resident = rounding ? 0.0 : 100.0}));
  DeviceOptions options;
  options.experts.workers = [&](const ShardLayout& layout) {
    auto host = make_host_executor(model, {.first_layer = layout.first_layer,
                                           .end_layer = layout.end_layer,
                                           .max_rows = layout.max_rows});
    CHECK(host.ok(), "{}", host.error().message);
    std::vector<std::unique_ptr<ExpertExecutor>> executors;
    executors.push_back(std::make_unique<RoundingExecutor>(*std::move(host), *rounding, seen));
    return executors;
  };
  TESSERA_ASSIGN(auto shards, open_shards(plan, options));
  TESSERA_ASSIGN(auto pipeline, Pipeline::load(model, plan, std::move(shards), {}));
  SequencePool pool(sequence_pool_layout(plan));
  TESSERA_ASSIGN(SequenceState state, pool.admit(rows));
  pipeline->reset_slot(state.slot());
  state.extend(rows);
  const SequenceRows sequence{.n_rows = rows, .slot = state.slot(), .pages = state.page_tables()};
  std::vector<std::int32_t> logit_rows;
  for (int i = 0; i < rows; ++i) logit_rows.push_back(i);
  TESSERA_TRY(
      pipeline->forward({.tokens = ids, .sequences = {&sequence, 1}, .logit_rows = logit_rows}));
  const std::span<const float> logits = pipeline->logits();
  const std::size_t n = logits.size() / ids.size();
  std::vector<double> out;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const std::span<const float> of_row = logits.subspan(row * n, n);
    const double most = *std::max_element(of_row.begin(), of_row.end());
    double sum = 0.0;
    for (const float logit : of_row) sum += std::exp(logit - most);
    for (const float logit : of_row) out.push_back(logit - most - std::log(sum));
  }
  return out;
}

// Of a row, whether some layer chose other experts, and by how little the first of them was chosen.
std::optional<double> tipped(const Choices& plain, const Choices& rounded, std::size_t row) {
  for (const auto& [layer, rows] : plain) {
    const Chosen& before = rows[row];
    const Chosen& after = rounded.at(layer)[row];
    double lost = 0.0, came = 0.0;
    for (const auto& [expert, weight] : before)
      if (!after.contains(expert)) lost = std::max(lost, double{weight});
    for (const auto& [expert, weight] : after)
      if (!before.contains(expert)) came = std::max(came, double{weight});
    if (lost > 0.0 || came > 0.0) return std::abs(lost - came) / std::max(lost, came);
  }
  return std::nullopt;
}

Status table(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name + "-bf16.gguf";
  const GoldenData golden = GoldenData::load(folder + "/" + name + ".bin");
  const std::span<const TokenId> ids = golden.ints("p300_ids");
  Choices unused, exact;
  TESSERA_ASSIGN(const std::vector<double> plain, run(path, ids, std::nullopt, unused));
  const std::size_t n = plain.size() / ids.size();
  constexpr Rounding kRoundings[] = {{ExpertPayload::f32},
                                     {ExpertPayload::f16},
                                     {ExpertPayload::f16, true, false},
                                     {ExpertPayload::f16, false, true},
                                     {ExpertPayload::bf16},
                                     {ExpertPayload::bf16, true, false},
                                     {ExpertPayload::bf16, false, true},
                                     {ExpertPayload::int16},
                                     {ExpertPayload::int16, true, false},
                                     {ExpertPayload::int16, false, true}};
  for (const Rounding& rounding : kRoundings) {
    Choices seen;
    TESSERA_ASSIGN(const std::vector<double> got, run(path, ids, rounding, seen));
    if (rounding.payload == ExpertPayload::f32) exact = seen;
    std::vector<double> rows;
    int over = 0, tipped_rows = 0, unexplained = 0;
    double margin = 0.0, before = 0.0;
    std::size_t rows_before = 0;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      double most = 0.0;
      for (std::size_t i = row * n; i < (row + 1) * n; ++i)
        most = std::max(most, std::abs(got[i] - plain[i]));
      rows.push_back(most);
      if (const auto by = tipped(exact, seen, row)) {
        ++tipped_rows;
        margin = std::max(margin, *by);
      }
      if (tipped_rows == 0) {
        before = std::max(before, most);
        ++rows_before;
      }
      over += most > 2e-2 ? 1 : 0;
      unexplained += most > 2e-2 && tipped_rows == 0 ? 1 : 0;
    }
    std::sort(rows.begin(), rows.end());
    fmt::print("{:<12}{:<10}{:>9.1e}{:>9.1e}{:>8}{:>8}{:>10}{:>9.1e}{:>6}{:>9.1e}\n", name,
               rounding.name(), rows.back(), rows[rows.size() / 2], over, tipped_rows, unexplained,
               before, rows_before, margin);
  }
  return {};
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: payload_bench GOLDEN_FOLDER MODEL...\n");
    return 2;
  }
  tessera::set_log_level(tessera::LogLevel::warn);
  fmt::print("{:<12}{:<10}{:>9}{:>9}{:>8}{:>8}{:>10}{:>9}{:>6}{:>9}\n", "model", "type", "largest",
             "median", "> 2e-2", "tipped", "untipped", "before", "rows", "margin");
  for (int i = 2; i < argc; ++i)
    if (const tessera::Status status = tessera::table(argv[1], argv[i]); !status) {
      fmt::print(stderr, "payload_bench: {}\n", status.error().message);
      return 1;
    }
  return 0;
}
