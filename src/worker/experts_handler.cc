#include "worker/experts_handler.h"

#include <algorithm>

#include "base/checked.h"
#include "base/log.h"
#include "experts/expert_worker.h"
#include "worker/job_layout.h"
#include "worker/model_ranges.h"
#include "worker/owned_experts.h"

namespace tessera::worker {
namespace {

bool same_expert_layout(const ExpertSetLayout& a, const ExpertSetLayout& b) {
  return a.first_layer == b.first_layer && a.max_rows == b.max_rows && a.max_pairs == b.max_pairs &&
         same_experts(a.experts, b.experts);
}

// Jobs that may be under way are counted up to so many: one is computed while the next one waits.
// More of them only if there is room.
constexpr std::uint16_t kCountedJobs = 2;

// Of the widest of `types` that is no f64.
std::uint64_t widest_rows(std::uint8_t types, std::uint32_t rows, std::uint32_t n_embd) {
  std::uint64_t bytes = 0;
  for (const WireType type : {WireType::f32, WireType::f16, WireType::bf16, WireType::int16})
    if ((types & type_bit(type)) != 0) bytes = std::max(bytes, rows_bytes(rows, n_embd, type));
  return bytes;
}

std::uint64_t job_bytes(const Hello& hello, const HelloAck& ack) {
  return kPairBytes * ack.max_pairs + widest_rows(ack.in_types, ack.max_rows, hello.dims.n_embd);
}

// Jobs that wait are kept in memory.
std::uint16_t jobs_within(std::uint64_t free, const Hello& hello, const HelloAck& ack) {
  const std::uint64_t more = free / std::max<std::uint64_t>(1, job_bytes(hello, ack));
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(ack.credits, kCountedJobs + more));
}

// With numbers: the client may do with fewer experts.
Refuse no_room(std::int64_t need, std::int64_t have) {
  return {.reason = RefuseReason::memory,
          .need = static_cast<std::uint64_t>(need),
          .have = static_cast<std::uint64_t>(std::max<std::int64_t>(0, have)),
          .text = fmt::format("the experts take {}, the budget is {}", format_bytes(need),
                              format_bytes(have))};
}

}  // namespace

std::int64_t experts_serving_bytes(const Hello& hello, const HelloAck& ack) {
  constexpr std::uint64_t kNumbers = sizeof(WirePair) + sizeof(RoutedPair);
  const std::uint64_t jobs = std::min(ack.credits, kCountedJobs) + 1u;  // and the one that comes
  return static_cast<std::int64_t>(jobs * job_bytes(hello, ack) + kNumbers * ack.max_pairs +
                                   widest_rows(ack.out_types, ack.max_rows, hello.dims.n_embd));
}

Result<ExpertSetLayout> ExpertsHandler::layout_of(const Hello& hello, const HelloAck& ack) const {
  if (ack.max_pairs == 0)
    return Error::make(ErrorCode::invalid, "a client asks for experts and jobs without pairs");
  ExpertSetLayout layout{.first_layer = static_cast<int>(hello.first_layer),
                         .max_rows = static_cast<int>(ack.max_rows),
                         .max_pairs = static_cast<int>(ack.max_pairs)};
  for (std::size_t l = 0; l < hello.end_layer - hello.first_layer; ++l) {
    const LayerSpec& spec = model_.spec().layers[hello.first_layer + l];
    std::vector<bool> owned;
    for (int e = 0; spec.moe && e < spec.moe->n_expert; ++e) owned.push_back(owns(hello, l, e));
    layout.experts.push_back(only_owned(std::move(owned)));
  }
  return layout;
}

Status ExpertsHandler::load(const ExpertSetLayout& layout, std::int64_t bytes) {
  set_.reset();
  TESSERA_ASSIGN(const FetchedWeights fetched,
                 FetchedWeights::get(options_.source, expert_ranges(model_, layout)));
  TESSERA_ASSIGN(set_, load_experts(model_, layout,
                                    {.kind = options_.device.kind,
                                     .number = options_.device.number,
                                     .threads = options_.device.threads,
                                     .cpus = options_.device.cpus,
                                     .isa = options_.isa,
                                     .gpu_plugins = options_.opening.gpu_plugins,
                                     .gpu_wait_s = options_.opening.gpu_wait_s,
                                     .gpu_chained = options_.opening.gpu_chained}));
  int experts = 0;
  for (const LayerExperts& layer : layout.experts) experts += layer.resident();
  log_info("loaded {} experts: {}", experts, format_bytes(bytes));
  return {};
}

void ExpertsHandler::release() {
  set_.reset();
  wire_ = {};
  pairs_ = {};
  rows_ = {};
  sums_ = {};
  result_ = {};
}

Result<Prepared> ExpertsHandler::prepare(const Hello& hello, const HelloAck& ack) {
  TESSERA_ASSIGN(const ExpertSetLayout layout, layout_of(hello, ack));
  const std::int64_t used = saturated_add(
      expert_worker_footprint(model_, layout, options_.device.threads, on_gpu()).total(),
      on_gpu() ? 0 : experts_serving_bytes(hello, ack));
  if (used > options_.budget) return Prepared{.refused = no_room(used, options_.budget)};
  if (!set_ || !same_expert_layout(layout, set_->layout())) TESSERA_TRY(load(layout, used));
  wire_.pairs.reserve(ack.max_pairs);
  pairs_.reserve(ack.max_pairs);
  rows_.resize(ack.max_rows * static_cast<std::size_t>(model_.spec().n_embd));
  sums_.resize(rows_.size());
  const auto free = static_cast<std::uint64_t>(options_.budget - used);
  return Prepared{.memory_used = static_cast<std::uint64_t>(used),
                  .memory_free = free,
                  // What is free of a GPU says nothing of where jobs wait.
                  .credits = jobs_within(on_gpu() ? 0 : free, hello, ack)};
}

Result<JobOutput> ExpertsHandler::run(const FrameHeader& header, std::span<const std::byte> body,
                                      const WireLimits& limits, const Near&) {
  if (header.op != Op::compute_experts)
    return Error::make(ErrorCode::not_found, "{} at a worker of experts", op_name(header.op));
  TESSERA_TRY(decode_experts(header, body, limits, wire_));
  const std::size_t values = std::size_t{header.rows} * limits.n_embd;
  unpack_rows(wire_.rows, header.in_type, std::span(rows_).first(values));
  pairs_.clear();
  for (const WirePair& pair : wire_.pairs)
    pairs_.push_back({.row = pair.row, .expert = pair.expert, .slot = 0, .weight = pair.weight});
  const ExpertJob job{.layer = header.layer,
                      .n_rows = static_cast<int>(header.rows),
                      .rows = std::span<const float>(rows_).first(values),
                      .pairs = pairs_};
  TESSERA_TRY(set_->check(job));
  if (Status computed = set_->compute(job, std::span(sums_).first(values)); !computed) {
    lost_ = true;
    return std::move(computed).error();
  }
  JobOutput output{.rows = header.rows, .columns = limits.n_embd, .type = header.out_type};
  if (header.out_type == WireType::f64) {
    output.body = std::as_bytes(std::span(sums_).first(values));
    return output;
  }
  result_.resize(wire_bytes(header.out_type, values));
  pack_sums(std::span(sums_).first(values), header.out_type, result_);
  output.body = result_;
  return output;
}

}  // namespace tessera::worker
