#include "worker/layers_handler.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "base/check.h"
#include "base/checked.h"
#include "base/log.h"
#include "device/shard_tensors.h"
#include "experts/offload_bytes.h"
#include "plan/footprint.h"
#include "plan/layer_cuts.h"
#include "worker/job_layout.h"
#include "worker/model_ranges.h"
#include "worker/owned_experts.h"
#include "worker/token_wire.h"

namespace tessera::worker {
namespace {

constexpr std::uint32_t kMaxSlots = 4096;

bool same_layout(const ShardLayout& a, const ShardLayout& b) {
  return a.first_layer == b.first_layer && a.end_layer == b.end_layer &&
         a.embedding == b.embedding && a.head == b.head && a.max_rows == b.max_rows &&
         a.max_logit_rows == b.max_logit_rows && a.slots == b.slots && a.context == b.context &&
         a.kv_type == b.kv_type && a.kv_pages == b.kv_pages && a.file_parts == b.file_parts &&
         same_experts(a.experts, b.experts);
}

// Which experts stay in memory; none where all do.
Result<std::vector<LayerExperts>> hello_experts(const ModelSpec& spec, const Hello& hello) {
  std::vector<LayerExperts> layers;
  if (hello.owned.empty()) return layers;
  for (std::size_t l = 0; l < hello.end_layer - hello.first_layer; ++l) {
    const auto& moe = spec.layers[hello.first_layer + l].moe;
    LayerExperts& layer = layers.emplace_back();
    for (int e = 0; moe && e < moe->n_expert; ++e)
      layer.home.push_back(owns(hello, l, e) ? ExpertHome::resident() : ExpertHome::host());
    layer.spare = hello.layers.expert_spare[l];
    const int away = static_cast<int>(layer.home.size()) - layer.resident();
    if (layer.spare > away)
      return Error::make(ErrorCode::invalid, "layer {}: {} places for {} experts away",
                         hello.first_layer + l, layer.spare, away);
  }
  return layers;
}

StateChange state_change(const WireStateChange& change) {
  constexpr StateChange::Kind kKinds[] = {
      StateChange::Kind::reset_slot, StateChange::Kind::copy_slot, StateChange::Kind::copy_page};
  return {.kind = kKinds[static_cast<std::size_t>(change.kind)],
          .kv_group = change.kv_group,
          .from = static_cast<int>(change.from),
          .to = static_cast<int>(change.to)};
}

}  // namespace

ModelDims model_dims(const ModelSpec& spec) {
  ModelDims dims{.n_layer = static_cast<std::uint32_t>(spec.n_layer()),
                 .n_embd = static_cast<std::uint32_t>(spec.n_embd),
                 .n_vocab = static_cast<std::uint32_t>(spec.n_vocab)};
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const auto widest = [](std::uint32_t& value, int other) {
      value = std::max(value, static_cast<std::uint32_t>(other));
    };
    widest(dims.n_expert, layer.moe->n_expert);
    widest(dims.n_expert_used, layer.moe->n_used);
    widest(dims.n_ff_expert, layer.moe->n_ff);
  }
  return dims;
}

Hello layers_hello(const Model& model, const ShardLayout& layout, const LayersWish& wish) {
  Hello hello = layers_terms(model.spec(), layout, wish);
  hello.model = model_digest(model.file());
  return hello;
}

Hello layers_terms(const ModelSpec& spec, const ShardLayout& layout, const LayersWish& wish) {
  Hello hello{.role = Role::layers,
              .in_types = type_bit(WireType::f32),
              .out_types = type_bit(WireType::f32),
              .dims = model_dims(spec),
              .first_layer = static_cast<std::uint32_t>(layout.first_layer),
              .end_layer = static_cast<std::uint32_t>(layout.end_layer),
              .max_rows = static_cast<std::uint32_t>(layout.max_rows),
              .slots = static_cast<std::uint32_t>(layout.slots),
              .credits = kPiecesPerBoundary};
  if (layout.head)
    hello.max_logit_rows =
        static_cast<std::uint32_t>(std::min(layout.max_logit_rows, layout.max_rows));
  hello.layers = {.kv_type = static_cast<std::uint8_t>(layout.kv_type),
                  .delta_form = static_cast<std::uint8_t>(wish.chunked_delta ? 1 : 0),
                  .max_positions = static_cast<std::uint32_t>(wish.context),
                  .file_parts = static_cast<std::uint16_t>(layout.file_parts),
                  .count_routing = wish.count_routing && hello.dims.n_expert > 0};
  for (const int pages : layout.kv_pages)
    hello.layers.kv_pages.push_back(static_cast<std::uint32_t>(pages));
  hello.owned = owned_bits(layout.experts, ExpertHome::resident(), hello.dims.n_expert);
  for (const LayerExperts& layer : layout.experts)
    hello.layers.expert_spare.push_back(static_cast<std::uint16_t>(layer.spare));
  // The tables of all sequences could change at once, as could all of their state.
  const std::uint64_t entries =
      PageTables::entries({.slots = layout.slots,
                           .groups = static_cast<int>(layout.kv_pages.size()),
                           .positions = wish.context});
  hello.max_page_changes =
      static_cast<std::uint32_t>(entries) + 2 * static_cast<std::uint32_t>(layout.slots);
  return hello;
}

LayersHandler::LayersHandler(const Model& model, const LayersHandlerOptions& options)
    : model_(model), options_(options) {
  for (const KvGroup& group : kv_groups(model.spec())) windows_.push_back(group.window);
}

Result<ShardLayout> hello_layout(const ModelSpec& spec, const Hello& hello, const HelloAck& ack) {
  const std::vector<bool> legal = legal_cuts(spec);
  if (!legal[hello.first_layer] || !legal[hello.end_layer])
    return Error::make(ErrorCode::invalid,
                       "layers {} to {} share KV with others and cannot be cut off",
                       hello.first_layer, hello.end_layer - 1);
  const std::size_t groups = kv_groups(spec).size();
  if (hello.layers.kv_pages.size() != groups ||
      hello.layers.kv_type > static_cast<int>(KvType::q8_0) || hello.slots == 0 ||
      hello.slots > kMaxSlots)
    return Error::make(ErrorCode::invalid, "a client asks for {} KV groups of {}, {} slots",
                       hello.layers.kv_pages.size(), groups, hello.slots);
  if (hello.layers.max_positions == 0 ||
      std::cmp_greater(hello.layers.max_positions, spec.context_length))
    return Error::make(ErrorCode::invalid, "a client asks for {} positions; the model has {}",
                       hello.layers.max_positions, spec.context_length);
  ShardLayout layout;
  layout.first_layer = static_cast<int>(hello.first_layer);
  layout.end_layer = static_cast<int>(hello.end_layer);
  layout.embedding = layout.first_layer == 0;
  layout.head = layout.end_layer == spec.n_layer();
  layout.max_rows = static_cast<int>(ack.max_rows);
  layout.max_logit_rows =
      std::max(1, static_cast<int>(std::min(hello.max_logit_rows, ack.max_rows)));
  layout.slots = static_cast<int>(hello.slots);
  layout.context = static_cast<int>(hello.layers.max_positions);
  layout.kv_type = static_cast<KvType>(hello.layers.kv_type);
  for (const std::uint32_t pages : hello.layers.kv_pages)
    layout.kv_pages.push_back(static_cast<int>(pages));
  TESSERA_ASSIGN(layout.experts, hello_experts(spec, hello));
  layout.file_parts = hello.layers.file_parts;
  if (layout.file_parts > file_part_count(spec, layout))
    return Error::make(ErrorCode::invalid, "a client leaves {} parts to the file; there are {}",
                       layout.file_parts, file_part_count(spec, layout));
  return layout;
}

std::optional<std::int64_t> serving_bytes(const Hello& hello, const HelloAck& ack) {
  const auto tables =
      PageTables::bytes({.slots = static_cast<int>(hello.slots),
                         .groups = static_cast<int>(hello.layers.kv_pages.size()),
                         .positions = static_cast<int>(hello.layers.max_positions)});
  const ForwardCounts most{.rows = ack.max_rows,
                           .sequences = ack.max_rows,
                           .page_changes = ack.max_page_changes,
                           .logit_rows = ack.max_rows,
                           .state_changes = ack.max_page_changes,
                           .choices = ack.max_rows,
                           .logit_changes = kMostLogitChanges};
  const std::uint64_t frame = forward_body_bytes(most, hello.dims.n_embd, WireType::f32);
  // One frame a credit, the one that comes and the one that is read; the job that is computed, in
  // numbers, with its rows.
  const std::uint64_t jobs = (ack.credits + kFramesBesideCredits + 1) * frame;
  const std::uint64_t routing = hello.layers.count_routing
                                    ? RoutingCounts::bytes(hello.dims.n_layer, hello.dims.n_expert)
                                    : 0;
  return tables ? checked_add(*tables, static_cast<std::int64_t>(jobs + routing)) : std::nullopt;
}

// Nothing where a part or the sum is more than can be counted.
std::optional<std::int64_t> sum_of(std::initializer_list<std::optional<std::int64_t>> parts) {
  std::optional<std::int64_t> sum = 0;
  for (const std::optional<std::int64_t>& part : parts)
    sum = sum && part ? checked_add(*sum, *part) : std::nullopt;
  return sum;
}

Result<std::int64_t> check_budget(const Model& model, const ShardLayout& layout, const Hello& hello,
                                  const HelloAck& ack, const ShardPlan& device,
                                  std::int64_t budget) {
  const Footprint parts = footprint(model, layout, device.kind, device.threads);
  std::optional<std::int64_t> bytes =
      sum_of({parts.weights, parts.kv, parts.recurrent, parts.scratch});
  if (device.kind == DeviceKind::cpu)  // the process's memory is the device's
    bytes = sum_of({bytes, offload_bytes(model, layout, {.threads = device.threads}),
                    serving_bytes(hello, ack)});
  if (bytes && *bytes <= budget) return *bytes;
  return Error::make(ErrorCode::exhausted, "layers {}-{} take {}, the budget is {}",
                     layout.first_layer, layout.end_layer - 1,
                     bytes ? format_bytes(*bytes) : "more than can be counted",
                     format_bytes(budget));
}

Result<Prepared> LayersHandler::prepare(const Hello& hello, const HelloAck& ack) {
  TESSERA_ASSIGN(const ShardLayout layout, hello_layout(model_.spec(), hello, ack));
  if ((!layout.experts.empty() || layout.file_parts > 0) && options_.source != nullptr)
    return Error::make(ErrorCode::invalid,
                       "a client leaves weights to the model's file, which is not here");
  TESSERA_TRY(device_supports(options_.device.kind, model_.spec()));
  TESSERA_ASSIGN(const std::int64_t bytes,
                 check_budget(model_, layout, hello, ack, options_.device, options_.budget));
  if (!shard_ || !same_layout(layout, layout_) || delta_form_ != hello.layers.delta_form) {
    shard_.reset();
    TESSERA_ASSIGN(const FetchedWeights fetched,
                   FetchedWeights::get(options_.source, shard_ranges(model_, layout)));
    DeviceOptions opening = options_.opening;
    opening.chunked_delta = hello.layers.delta_form == 1;
    TESSERA_ASSIGN(auto device, open_device(options_.device, opening));
    LocalExperts experts{.metrics = &expert_metrics_, .threads = options_.device.threads};
    if (!opening.cpu_isa.empty()) {
      TESSERA_ASSIGN(experts.isa, cpu::parse_isa(opening.cpu_isa));
    }
    auto shard = std::make_unique<LocalShard>(std::move(device), layout, options_.device.cpus,
                                              std::move(experts));
    TESSERA_TRY(shard->load(model_, {}));
    log_info("loaded layers {}-{}: {}", layout.first_layer, layout.end_layer - 1,
             format_bytes(bytes));
    // Before the shard is kept: memory may lack.
    chosen_.resize(static_cast<std::size_t>(layout.max_logit_rows));
    piece_.allocate({.max_rows = layout.max_rows, .n_embd = model_.spec().n_embd});
    shard_ = std::move(shard);
    layout_ = layout;
    delta_form_ = hello.layers.delta_form;
  }
  auto routing = hello.layers.count_routing ? std::make_unique<RoutingCounts>(model_.spec())
                                            : std::unique_ptr<RoutingCounts>();
  shard_->count_in(routing.get());
  routing_ = std::move(routing);
  n_expert_ = hello.dims.n_expert;
  counted_before_ = expert_metrics_.counts();
  limits_ = {.slots = hello.slots,
             .kv_pages = hello.layers.kv_pages,
             .max_positions = hello.layers.max_positions};
  pages_ = PageTables({.slots = layout.slots,
                       .groups = static_cast<int>(layout.kv_pages.size()),
                       .positions = static_cast<int>(hello.layers.max_positions)});
  return Prepared{.memory_used = static_cast<std::uint64_t>(bytes),
                  .memory_free = static_cast<std::uint64_t>(options_.budget - bytes)};
}

ExpertCounts LayersHandler::expert_counts() const {
  ExpertCounts counts = expert_metrics_.counts();
  for (const ExpertCountField& field : kExpertCountFields)
    counts.*field.value -= counted_before_.*field.value;
  return counts;
}

Status LayersHandler::routed(std::uint16_t layer, std::vector<std::byte>& body) {
  if (routing_ == nullptr || layer < layout_.first_layer || layer >= layout_.end_layer)
    return Error::make(ErrorCode::not_found, "nothing of layer {} is counted", layer);
  encode_routed(routing_->take(layer), n_expert_, body);
  return {};
}

// The job as a piece; its rows are in place afterwards.
Status LayersHandler::take_job(const FrameHeader& header, const ForwardBody& job) {
  const bool embeds = header.in_type == WireType::none;
  if (header.layer != layout_.first_layer || embeds != layout_.embedding ||
      ((header.flags & kFlagHead) != 0) != layout_.head)
    return Error::make(ErrorCode::not_found,
                       "a job for layer {} {} embedding; here are layers {}-{}", header.layer,
                       embeds ? "with" : "without", layout_.first_layer, layout_.end_layer - 1);
  TESSERA_TRY(pages_.apply(job.page_changes));
  sequences_.clear();
  int row = 0;
  for (const WireSequence& sequence : job.sequences) {
    TESSERA_TRY(pages_.check_visible(windows_, limits_.kv_pages, sequence));
    sequences_.push_back({.first_row = row,
                          .n_rows = static_cast<int>(sequence.rows),
                          .first_position = static_cast<int>(sequence.first_position),
                          .slot = static_cast<int>(sequence.slot),
                          .pages = pages_.of(static_cast<int>(sequence.slot))});
    row += static_cast<int>(sequence.rows);
  }
  if (std::cmp_greater(job.logit_rows.size(), layout_.head ? layout_.max_logit_rows : 0))
    return Error::make(ErrorCode::invalid, "a job with {} logit rows", job.logit_rows.size());
  logit_rows_.assign(job.logit_rows.begin(), job.logit_rows.end());
  piece_.changes.clear();
  for (const WireStateChange& change : job.state_changes)
    piece_.changes.push_back(state_change(change));
  piece_.take({.tokens = job.tokens,
               .sequences = sequences_,
               .logit_rows = logit_rows_,
               .choices = {job.choices, job.logit_changes}},
              {0, row});
  piece_.chosen_out = std::span(chosen_).first(job.choices.size());
  if (!embeds) unpack_rows(job.rows, header.in_type, piece_.hidden());
  return {};
}

Status LayersHandler::compute(const Near& near) {
  TESSERA_TRY(shard_->prepare(piece_));
  TESSERA_TRY(shard_->start(piece_));
  return shard_->finish(piece_, near);
}

Result<JobOutput> LayersHandler::run(const FrameHeader& header, std::span<const std::byte> body,
                                     const WireLimits& limits, const Near& near) {
  if (header.op != Op::forward_layers)
    return Error::make(ErrorCode::not_found, "{} at a worker of layers", op_name(header.op));
  TESSERA_TRY(decode_forward(header, body, limits, limits_, job_));
  TESSERA_TRY(take_job(header, job_));
  if (Status computed = compute(near); !computed) {
    lost_ = !shard_->keeps_state();
    return std::move(computed).error();
  }
  return output(header, limits);
}

JobOutput LayersHandler::output(const FrameHeader& header, const WireLimits& limits) {
  if (!layout_.head)
    return {.rows = header.rows, .columns = limits.n_embd, .body = std::as_bytes(piece_.hidden())};
  const auto rows = static_cast<std::uint32_t>(job_.logit_rows.size());
  if (rows == 0) return {};
  if (job_.choices.empty())
    return {.rows = rows, .columns = limits.n_vocab, .body = std::as_bytes(shard_->logits())};
  const std::uint32_t words = result_words(job_.choices);
  encode_chosen(piece_.chosen_out, words, told_);
  return {
      .rows = rows, .columns = words, .type = WireType::none, .body = told_, .flags = kFlagChoose};
}

}  // namespace tessera::worker
