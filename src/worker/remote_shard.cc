#include "worker/remote_shard.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/within_memory.h"
#include "worker/layers_handler.h"
#include "worker/state_changes.h"
#include "worker/token_wire.h"

namespace tessera::worker {
namespace {

WireStateChange wire_change(const StateChange& change) {
  WireStateChange wire{.kv_group = static_cast<std::uint16_t>(change.kv_group),
                       .from = static_cast<std::uint32_t>(change.from),
                       .to = static_cast<std::uint32_t>(change.to)};
  switch (change.kind) {
    case StateChange::Kind::reset_slot:
      wire.kind = WireStateChange::Kind::reset_slot;
      break;
    case StateChange::Kind::copy_slot:
      wire.kind = WireStateChange::Kind::copy_slot;
      break;
    case StateChange::Kind::copy_page:
      wire.kind = WireStateChange::Kind::copy_page;
      break;
  }
  return wire;
}

Counter& bytes_counter(MetricsRegistry& metrics, const std::string& worker, const char* direction) {
  return metrics.counter("tessera_worker_bytes_total", "Bodies of jobs and results.",
                         {{"worker", worker}, {"direction", direction}});
}

Counter& lost_counter(MetricsRegistry& metrics, const std::string& worker, const char* reason) {
  return metrics.counter("tessera_worker_lost_total",
                         "Losses of a worker's layers and of the sequences' state in them.",
                         {{"worker", worker}, {"reason", reason}});
}

// A result's rows where they are: many logits are not copied once more.
std::span<const float> f32_values(const Frame& frame) {
  static_assert(std::endian::native == std::endian::little, "values are taken as they lie");
  const std::span<const std::byte> body = frame.body();  // aligned, as all that a frame owns
  return {reinterpret_cast<const float*>(body.data()), body.size() / sizeof(float)};
}

}  // namespace

Result<std::unique_ptr<RemoteShard>> RemoteShard::create(const WorkerSite& site,
                                                         const RemoteShardOptions& options,
                                                         const Model& model,
                                                         MetricsRegistry& metrics) {
  using Made = Result<std::unique_ptr<RemoteShard>>;
  const auto make = [&]() -> Made {
    Hello hello = layers_hello(model, options.layout,
                               {.context = options.context,
                                .chunked_delta = options.chunked_delta,
                                .count_routing = options.counts != nullptr});
    hello.credits = static_cast<std::uint16_t>(options.credits);
    if (hello.max_rows > kMaxWireRows || hello.max_page_changes > kMaxPageChanges)
      return Error::make(
          ErrorCode::invalid,
          "{}: steps of {} rows and {} pages of all sequences are more than a worker "
          "takes ({} and {}); lower --ctx, --parallel or --prefill-chunk",
          site.name, hello.max_rows, hello.max_page_changes, kMaxWireRows, kMaxPageChanges);
    return std::unique_ptr<RemoteShard>(new RemoteShard(site, options, model, hello, metrics));
  };
  return within_memory(make, "the host");
}

RemoteShard::RemoteShard(const WorkerSite& site, const RemoteShardOptions& options,
                         const Model& model, const Hello& hello, MetricsRegistry& metrics)
    : site_(site),
      options_(options),
      hello_(hello),
      n_vocab_(model.spec().n_vocab),
      jobs_(metrics.counter("tessera_worker_jobs_total", "Jobs that a worker answered.",
                            {{"worker", site.name}})),
      losses_{&lost_counter(metrics, site.name, "worker"),
              &lost_counter(metrics, site.name, "deadline"),
              &lost_counter(metrics, site.name, "refused"),
              &lost_counter(metrics, site.name, "size")},
      bytes_sent_(bytes_counter(metrics, site.name, "to_worker")),
      bytes_received_(bytes_counter(metrics, site.name, "to_client")),
      wait_us_(metrics.counter("tessera_worker_wait_microseconds_total",
                               "Time spent waiting for a worker's results.",
                               {{"worker", site.name}})),
      logits_instead_(metrics.counter("tessera_worker_logits_total",
                                      "Results with logits in place of the tokens, by reason.",
                                      {{"worker", site.name}, {"reason", "choices"}})) {
  if (options.layout.head) chooser_.emplace(model.spec());
  SupervisorOptions supervised{.name = site.name,
                               .hello = hello,
                               .model = sent_model(site, model),
                               .counts = options.counts,
                               .build = site.build,
                               .isa = site.isa,
                               .lifecycle = site.lifecycle,
                               .stop = site.stop};
  supervised.lifecycle.job_limit = kSupervisorPatience * site.job_limit;
  supervisor_ = std::make_unique<Supervisor>(
      std::move(supervised), site_starter(site, ring_sizes(hello), metrics), metrics);
}

Status RemoteShard::load(const Model&, const LoadProgress&) {
  const auto wait = [this]() -> Status {
    TESSERA_ASSIGN(std::shared_ptr<Session> session, supervisor_->wait(awaited_starts(site_)));
    return adopt(std::move(session));
  };
  return within_memory(wait, "the host");
}

Status RemoteShard::adopt(std::shared_ptr<Session> session) {
  const HelloAck& ack = session->agreed();
  if (ack.max_rows < hello_.max_rows || ack.max_page_changes < hello_.max_page_changes) {
    session->close();
    losses_[static_cast<std::size_t>(Loss::size)]->add();
    return Error::make(ErrorCode::unavailable, "{} takes {} rows and {} pages of {} and {}",
                       site_.name, ack.max_rows, ack.max_page_changes, hello_.max_rows,
                       hello_.max_page_changes);
  }
  // What may lack memory comes first: a session that is taken up is taken up whole.
  PageTables pages({.slots = options_.layout.slots,
                    .groups = static_cast<int>(options_.layout.kv_pages.size()),
                    .positions = options_.context});
  FixedQueue<UnderWay> under_way(ack.credits);
  session_ = std::move(session);
  depth_ = ack.credits;
  pages_ = std::move(pages);
  under_way_ = std::move(under_way);
  job_.state_changes.clear();
  return {};
}

void RemoteShard::count_experts() {
  if (options_.experts != nullptr)
    options_.experts->add(session_->take_experts(), options_.expert_cost);
}

Status RemoteShard::ready() const {
  if (const auto away = supervisor_->away())
    return Error::make(ErrorCode::unavailable, "{} is {}", site_.name, *away);
  return {};
}

std::vector<std::string> RemoteShard::away() const {
  if (const Status status = ready(); !status) return {status.error().message};
  if (const auto late = supervisor_->unanswered())
    return {fmt::format("{} is {}", site_.name, *late)};
  return {};
}

Status RemoteShard::restart() {
  const auto take_up = [this]() -> Status {
    TESSERA_TRY(ready());
    std::shared_ptr<Session> now = supervisor_->session();
    if (!now) return Error::make(ErrorCode::unavailable, "{} was lost again", site_.name);
    return now == session_ ? Status() : adopt(std::move(now));
  };
  return within_memory(take_up, "the host");
}

// Without its worker the shard's state is gone, so nothing is kept of the session either.
Error RemoteShard::lost(Loss reason, const std::string& detail) {
  if (session_) {
    losses_[static_cast<std::size_t>(reason)]->add();
    count_experts();
    session_->give_up({.why = detail, .late = reason == Loss::deadline});
    session_.reset();
  }
  under_way_.clear();
  return Error::make(ErrorCode::unavailable, "{} was lost: {}", site_.name, detail);
}

Status RemoteShard::prepare(Piece& piece) {
  const BatchView& view = piece.view();
  // After those of pieces that were prepared and not started.
  const bool some_wait = !job_.state_changes.empty();
  for (const StateChange& change : piece.changes) job_.state_changes.push_back(wire_change(change));
  if (some_wait) drop_overwritten(job_.state_changes);
  job_.tokens.assign(view.tokens.begin(), view.tokens.end());
  job_.logit_rows.assign(view.logit_rows.begin(), view.logit_rows.end());
  if (!options_.layout.head) job_.logit_rows.clear();
  job_.choices.clear();
  job_.logit_changes.clear();
  if (asks_for_tokens(piece)) {
    job_.choices.assign(view.choices.rows.begin(), view.choices.rows.end());
    job_.logit_changes.assign(view.choices.changes.begin(), view.choices.changes.end());
  }
  job_.sequences.clear();
  job_.page_changes.clear();
  for (const SequenceRows& sequence : view.sequences) {
    if (sequence.n_rows == 0) continue;
    job_.sequences.push_back({.rows = static_cast<std::uint32_t>(sequence.n_rows),
                              .first_position = static_cast<std::uint32_t>(sequence.first_position),
                              .slot = static_cast<std::uint32_t>(sequence.slot)});
    pages_.changes_for(sequence, job_.page_changes);
  }
  if (job_.state_changes.size() > hello_.max_page_changes)
    return lost(Loss::size, "too many changes of state for a job");
  encode_forward_head(job_, head_);
  if (!session_) return lost(Loss::worker, "its connection ended");
  // Where shards are before it, the piece comes from the last of them soon, and not at once.
  if (!options_.layout.embedding) session_->announce();
  return {};
}

bool RemoteShard::asks_for_tokens(const Piece& piece) const {
  const TokenChoices& choices = piece.view().choices;
  return options_.layout.head && !choices.empty() && fits_wire(choices);
}

std::uint16_t RemoteShard::flags_of(const Piece& piece) const {
  if (!options_.layout.head) return 0;
  return asks_for_tokens(piece) ? kFlagHead | kFlagChoose : kFlagHead;
}

Status RemoteShard::start(Piece& piece) {
  if (!session_) return lost(Loss::worker, "its connection ended");
  const bool embeds = options_.layout.embedding;
  const FrameHeader header{.op = Op::forward_layers,
                           .layer = static_cast<std::uint16_t>(options_.layout.first_layer),
                           .flags = flags_of(piece),
                           .rows = static_cast<std::uint32_t>(piece.view().rows()),
                           .in_type = embeds ? WireType::none : WireType::f32,
                           .out_type = WireType::f32};
  const std::span<const std::byte> rows =
      embeds ? std::span<const std::byte>() : std::as_bytes(piece.hidden());
  const std::array<std::span<const std::byte>, 2> parts = {head_, rows};
  const Deadline begin = Clock::now();
  const Result<Ticket> ticket =
      session_->submit(header, Parts(parts), {site_.job_limit, site_.job_limit});
  if (!ticket) return lost(Loss::worker, ticket.error().message);
  under_way_.push() = {*ticket, begin};
  job_.state_changes.clear();
  TESSERA_TRY(pages_.apply(job_.page_changes));
  bytes_sent_.add(head_.size() + rows.size());
  return {};
}

// Jobs run one after another, so each has its time from when the one before was there; and what it
// takes to send it is part of that.
Deadline RemoteShard::limit(const UnderWay& job) const {
  return std::max(job.submitted, finished_) + site_.job_limit;
}

Status RemoteShard::finish(Piece& piece, const std::function<void()>& near) {
  if (!session_ || under_way_.empty()) return lost(Loss::worker, "its connection ended");
  const UnderWay job = under_way_.front();
  logits_ = {};
  const Deadline begin = Clock::now();
  bool told = false;
  const Result<bool> came = session_->wait(job.ticket, reply_, limit(job), [&] {
    told = true;
    near();
  });
  finished_ = Clock::now();
  wait_us_.add(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(finished_ - begin).count()));
  if (!came) return lost(Loss::worker, came.error().message);
  if (!*came)
    return lost(Loss::deadline, fmt::format("no result within {} ms", site_.job_limit.count()));
  under_way_.pop();
  count_experts();
  TESSERA_TRY(check_reply(piece, reply_));
  if (!told) near();
  TESSERA_TRY(asks_for_tokens(piece) ? take_tokens(piece, reply_) : take_rows(piece, reply_));
  jobs_.add();
  bytes_received_.add(reply_.body.size());
  return {};
}

Status RemoteShard::take_rows(Piece& piece, const JobReply& reply) {
  const std::span<const float> values = f32_values(reply.frame);
  if (!all_finite(values)) return lost(Loss::refused, "a result that is not finite");
  const TokenChoices& choices = piece.view().choices;
  if (!options_.layout.head) {
    std::copy(values.begin(), values.end(), piece.hidden().begin());
  } else if (choices.empty()) {
    logits_ = values;
  } else {
    logits_instead_.add();
    chooser_->choose(values, choices, piece.chosen_out);
  }
  return {};
}

Status RemoteShard::take_tokens(Piece& piece, const JobReply& reply) {
  const Status taken = decode_chosen(reply.body, piece.view().choices.rows, chooser_->tokens(),
                                     n_vocab_, piece.chosen_out);
  return taken ? taken : lost(Loss::refused, taken.error().message);
}

// That the result has the job's shape; its length then follows (check_frame).
Status RemoteShard::check_reply(const Piece& piece, const JobReply& reply) {
  if (reply.error) return lost(Loss::refused, reply.error->text);
  if (reply.header.status != JobStatus::ok)
    return lost(Loss::refused, fmt::format("job status {}", static_cast<int>(reply.header.status)));
  const BatchView& view = piece.view();
  const bool head = options_.layout.head;
  const bool tokens = asks_for_tokens(piece);
  const auto rows = static_cast<std::uint32_t>(head ? view.logit_rows.size() : view.tokens.size());
  std::uint32_t columns = head ? static_cast<std::uint32_t>(n_vocab_) : hello_.dims.n_embd;
  if (tokens) columns = result_words(view.choices.rows);
  const bool due = reply.header.rows == rows && (rows == 0 || reply.header.items == columns) &&
                   ((reply.header.flags & kFlagChoose) != 0) == tokens &&
                   (rows == 0 || tokens || reply.header.out_type == WireType::f32);
  if (!due)
    return lost(Loss::refused, fmt::format("a result of {} rows of {} where {} of {} are due",
                                           reply.header.rows, reply.header.items, rows, columns));
  return {};
}

}  // namespace tessera::worker
