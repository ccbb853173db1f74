#include "worker/remote_experts.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/fixed_queue.h"
#include "base/within_memory.h"
#include "device/cpu/cpu_device.h"
#include "worker/jobs.h"
#include "worker/layers_handler.h"
#include "worker/owned_experts.h"

namespace tessera::worker {
namespace {

// Nothing of a state is lost with a worker of experts, so the supervisor need not wait long.
constexpr std::chrono::milliseconds kMostJobLimit{10'000};
// Of jobs under way at a time: a fraction of what the buffers of both ends hold.
constexpr std::int64_t kSocketRoom = std::int64_t{128} << 10;
// For any byte of a job, when a worker that reads would have taken it.
constexpr std::chrono::milliseconds kStuck{10};

constexpr const char* kLate = "still busy with a late job";

// The longest that the frame can say is over an hour.
std::uint32_t deadline_us(std::chrono::microseconds deadline) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(deadline.count(), 1, 0xffffffff));
}

// What one takes at a worker, by layer.
std::vector<std::int64_t> bytes_of_experts(const Model& model) {
  ShardLayout all;
  all.end_layer = model.spec().n_layer();
  return cpu_expert_bytes(model, all);
}

// A worker says what it likes.
std::int64_t as_bytes(std::uint64_t said) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(said, kMost));
}

}  // namespace

WireType wire_type(ExpertPayload payload) {
  switch (payload) {
    case ExpertPayload::f32:
      return WireType::f32;
    case ExpertPayload::f16:
      return WireType::f16;
    case ExpertPayload::bf16:
      return WireType::bf16;
    case ExpertPayload::int16:
      return WireType::int16;
  }
  return WireType::f32;
}

// With f32 nothing of the sums is lost, so that a worker's experts give the bits that this process
// would.
WireType sum_type(WireType payload) {
  return payload == WireType::f32 ? WireType::f64 : payload;
}

Hello experts_hello(const Model& model, const ExpertConnectionOptions& options) {
  CHECK(std::cmp_equal(options.experts.size(), model.spec().n_layer()));
  Hello hello = experts_terms(model.spec(), options);
  hello.model = model_digest(model.file());
  hello.owned = owned_bits(options.experts, ExpertHome::worker(options.id), hello.dims.n_expert);
  return hello;
}

Hello experts_terms(const ModelSpec& spec, const ExpertConnectionOptions& options) {
  const WireType type = wire_type(options.payload);
  Hello hello{.role = Role::experts,
              .in_types = type_bit(type),
              .out_types = type_bit(sum_type(type)),
              .dims = model_dims(spec),
              .first_layer = 0,
              .end_layer = static_cast<std::uint32_t>(spec.n_layer()),
              .max_rows = static_cast<std::uint32_t>(options.max_rows),
              .credits = static_cast<std::uint16_t>(options.credits)};
  hello.max_pairs = hello.max_rows * std::max(1u, hello.dims.n_expert_used);
  return hello;
}

Result<std::unique_ptr<ExpertConnection>> ExpertConnection::create(
    const WorkerSite& site, const ExpertConnectionOptions& options, const Model& model,
    MetricsRegistry& metrics) {
  using Made = Result<std::unique_ptr<ExpertConnection>>;
  const auto make = [&]() -> Made {
    const Hello hello = experts_hello(model, options);
    if (hello.dims.n_expert == 0)
      return Error::make(ErrorCode::invalid, "{}: the model has no experts", site.name);
    // A block across two rows would let a row's neighbours change its rounding.
    if (options.payload == ExpertPayload::int16 && hello.dims.n_embd % kInt16Block != 0)
      return Error::make(
          ErrorCode::invalid,
          "{}: int16 takes {} values at a time, and the model's rows have {}; give f16", site.name,
          kInt16Block, hello.dims.n_embd);
    return std::unique_ptr<ExpertConnection>(
        new ExpertConnection(site, hello, options, model, metrics));
  };
  return within_memory(make, "the host");
}

ExpertConnection::ExpertConnection(const WorkerSite& site, const Hello& hello,
                                   const ExpertConnectionOptions& options, const Model& model,
                                   MetricsRegistry& metrics)
    : site_(site),
      hello_(hello),
      payload_(wire_type(options.payload)),
      required_(options.required),
      times_(site.job_limit) {
  SupervisorOptions supervised{.name = site.name,
                               .hello = hello,
                               .model = sent_model(site, model),
                               .build = site.build,
                               .isa = site.isa,
                               .lifecycle = site.lifecycle,
                               .stop = site.stop};
  supervised.lifecycle.job_limit =
      required_ ? kSupervisorPatience * site.job_limit : std::min(site.job_limit, kMostJobLimit);
  // Where nobody else may compute, one that has no room for all of its experts is of no use.
  if (!required_)
    supervised.fewer_experts = [bytes = bytes_of_experts(model)](const Hello& asked,
                                                                 const Refuse& refuse) {
      return refuse.need > refuse.have
                 ? without_experts(asked, bytes, as_bytes(refuse.need - refuse.have))
                 : std::nullopt;
    };
  supervisor_ = std::make_unique<Supervisor>(
      std::move(supervised), site_starter(site, ring_sizes(hello), metrics), metrics);
}

Status ExpertConnection::wait_ready() {
  if (auto ready = supervisor_->wait(awaited_starts(site_)); !ready)
    return std::move(ready).error().in(site_.name);
  return {};
}

std::optional<std::string> ExpertConnection::away() const {
  if (auto away = supervisor_->away()) return away;
  const std::shared_ptr<Session> session = supervisor_->session();
  if (session && is_late(*session)) return kLate;
  return std::nullopt;
}

std::chrono::microseconds ExpertConnection::deadline(std::size_t pairs, double host_us) const {
  return required_ ? site_.job_limit : times_.deadline(pairs, host_us);
}

// Where nobody else computes, a job that was given up is waited for by those behind it.
bool ExpertConnection::is_late(const Session& session) const {
  return !required_ && session.health().abandoned > 0;
}

// One dispatcher's jobs at the worker.
class RemoteExperts final : public ExpertExecutor {
 public:
  explicit RemoteExperts(ExpertConnection& worker)
      : worker_(worker), arrivals_(worker.site_.job_limit), jobs_(worker.hello_.credits) {}
  ~RemoteExperts() override { drop(); }

  std::string name() const override { return worker_.name(); }
  std::optional<std::string> away() const override { return worker_.away(); }
  std::optional<std::string> unanswered() const override { return worker_.unanswered(); }
  ExpertLimits limits() const override;
  bool has(int layer) const override;
  bool rounds() const override { return worker_.payload_ != WireType::f32; }
  void round_rows(std::span<float> rows) override;
  void round_sums(std::span<double> sums) override;
  Status submit(const ExpertJob& job) override;
  Deadline expected() const override;
  bool wait(Deadline until) override;
  Result<ExpertReport> collect(std::span<double> sums) override;
  void drop() override;
  void give_up() override;

 private:
  struct UnderWay {
    std::shared_ptr<Session> session;
    Ticket ticket;
    std::size_t pairs = 0;
    std::uint32_t rows = 0;
    std::int64_t bytes = 0;
    Deadline submitted;
    std::chrono::microseconds suspect{0};  // after so long
    std::chrono::microseconds limit{0};
  };
  // Jobs run one after another, so each has its time from when the one before was there.
  Deadline begin(const UnderWay& job) const { return std::max(job.submitted, collected_); }
  using Body = std::array<std::span<const std::byte>, 2>;  // head, rows
  Status check_session(Session* session);
  Body pack(const ExpertJob& job);
  bool has_room(const Session& session, std::int64_t bytes) const;
  FrameHeader header(const ExpertJob& job, std::chrono::microseconds deadline) const;
  UnderWay pop();
  Error give_up_late(const UnderWay& job);
  Status check_reply(const UnderWay& job, std::size_t values) const;

  ExpertConnection& worker_;
  // With what the way took, as far as it was waited for: that is expected, but makes no deadline.
  JobTimes arrivals_;
  FixedQueue<UnderWay> jobs_;  // as many as there are credits
  std::vector<WirePair> pairs_;
  std::vector<std::byte> head_;
  std::vector<std::byte> rows_;
  // Of the oldest job.
  std::optional<Deadline> waited_since_;
  std::optional<Result<bool>> came_;  // its reply, or an error
  JobReply reply_;

  Deadline collected_{};  // when the last job was
  bool late_ = false;     // one was given up, and so are those behind it
};

std::unique_ptr<ExpertExecutor> ExpertConnection::executor() {
  return std::make_unique<RemoteExperts>(*this);
}

ExpertLimits RemoteExperts::limits() const {
  const std::shared_ptr<Session> session = worker_.supervisor_->session();
  if (!session)
    return {.max_rows = static_cast<int>(worker_.hello_.max_rows),
            .max_pairs = static_cast<int>(worker_.hello_.max_pairs)};
  const HelloAck& ack = session->agreed();
  return {.max_rows = static_cast<int>(ack.max_rows),
          .max_pairs = static_cast<int>(ack.max_pairs),
          .jobs = ack.credits};
}

bool RemoteExperts::has(int layer) const {
  const std::shared_ptr<Session> session = worker_.supervisor_->session();
  return !session || count_owned(session->asked(), static_cast<std::size_t>(layer)) > 0;
}

// Whether a job may go there at all.
Status RemoteExperts::check_session(Session* session) {
  if (session == nullptr || session->closed())
    return Error::make(ErrorCode::unavailable, "{}", worker_.away().value_or("away until now"));
  if (const auto late = session->take_late()) worker_.times_.learn_late(late->items, late->compute);
  if (worker_.is_late(*session)) return Error::make(ErrorCode::unavailable, "{}", kLate);
  if (jobs_.full())
    return Error::make(ErrorCode::exhausted, "all {} jobs of the worker are under way",
                       jobs_.size());
  return {};
}

// The job's body: this executor's, until the next.
RemoteExperts::Body RemoteExperts::pack(const ExpertJob& job) {
  pairs_.clear();
  for (const RoutedPair& pair : job.pairs)
    pairs_.push_back({.row = static_cast<std::uint16_t>(pair.row),
                      .expert = static_cast<std::uint16_t>(pair.expert),
                      .weight = pair.weight});
  encode_experts_head(pairs_, head_);
  if (worker_.payload_ == WireType::f32) return {head_, std::as_bytes(job.rows)};
  rows_.resize(wire_bytes(worker_.payload_, job.rows.size()));
  pack_rows(job.rows, worker_.payload_, rows_);
  return {head_, rows_};
}

// A worker that computes reads nothing: what a socket does not hold would keep this thread from
// the resident experts.
bool RemoteExperts::has_room(const Session& session, std::int64_t bytes) const {
  if (jobs_.empty() || session.reserves_room()) return true;
  for (std::size_t i = 0; i < jobs_.size(); ++i) bytes += jobs_[i].bytes;
  return bytes <= kSocketRoom;
}

FrameHeader RemoteExperts::header(const ExpertJob& job, std::chrono::microseconds deadline) const {
  return {.op = Op::compute_experts,
          .layer = static_cast<std::uint16_t>(job.layer),
          .rows = static_cast<std::uint32_t>(job.n_rows),
          .items = static_cast<std::uint32_t>(job.pairs.size()),
          .in_type = worker_.payload_,
          .out_type = sum_type(worker_.payload_),
          .deadline_us = deadline_us(deadline * static_cast<std::int64_t>(jobs_.size() + 1))};
}

Status RemoteExperts::submit(const ExpertJob& job) {
  std::shared_ptr<Session> session = worker_.supervisor_->session();
  TESSERA_TRY(check_session(session.get()));
  if (jobs_.empty()) late_ = false;
  const Body parts = pack(job);
  const auto bytes = static_cast<std::int64_t>(parts[0].size() + parts[1].size());
  if (!has_room(*session, bytes))
    return Error::make(ErrorCode::exhausted, "the socket holds no further job");
  const auto deadline = worker_.deadline(job.pairs.size(), job.host_us);
  const auto suspect = arrivals_.suspect(job.pairs.size(), job.host_us);
  const Deadline begin = Clock::now();
  // What the way takes counts as the worker's time. The rest of a job that it is slow to take goes
  // out once the resident experts are done, and by then the host may compute it too.
  const auto all = std::max(kStuck, std::chrono::ceil<std::chrono::milliseconds>(suspect));
  TESSERA_ASSIGN(const Ticket ticket,
                 session->submit(header(job, deadline), Parts(parts), {all, kStuck}));
  jobs_.push() = {.session = std::move(session),
                  .ticket = ticket,
                  .pairs = job.pairs.size(),
                  .rows = static_cast<std::uint32_t>(job.n_rows),
                  .bytes = bytes,
                  .submitted = begin,
                  .suspect = suspect,
                  .limit = deadline};
  return {};
}

void RemoteExperts::round_rows(std::span<float> rows) {
  rows_.resize(wire_bytes(worker_.payload_, rows.size()));
  pack_rows(rows, worker_.payload_, rows_);
  unpack_rows(rows_, worker_.payload_, rows);
}

void RemoteExperts::round_sums(std::span<double> sums) {
  rows_.resize(wire_bytes(worker_.payload_, sums.size()));
  pack_sums(sums, worker_.payload_, rows_);
  unpack_sums(rows_, worker_.payload_, sums);
}

Deadline RemoteExperts::expected() const {
  return late_ ? Deadline::max() : begin(jobs_.front()) + jobs_.front().suspect;
}

// Behind a job that is late nothing is waited for.
bool RemoteExperts::wait(Deadline until) {
  const UnderWay& job = jobs_.front();
  const Deadline latest = late_ ? Deadline::min() : begin(job) + job.limit;
  if (!waited_since_) waited_since_ = Clock::now();
  if (!came_) {
    Result<bool> came = job.session->wait(job.ticket, reply_, std::min(until, latest));
    if (!came || *came) came_ = std::move(came);
  }
  return came_ || until >= latest;
}

// The worker is told not to bother, and those behind it have had their time too.
void RemoteExperts::give_up() {
  jobs_.front().session->abandon(jobs_.front().ticket);
  pop();
  late_ = true;
}

RemoteExperts::UnderWay RemoteExperts::pop() {
  UnderWay job = std::move(jobs_.front());
  jobs_.pop();
  came_.reset();
  waited_since_.reset();
  collected_ = Clock::now();
  return job;
}

Result<ExpertReport> RemoteExperts::collect(std::span<double> sums) {
  CHECK(!jobs_.empty(), "no job to collect");
  wait(Deadline::max());
  const Result<bool> came = came_.value_or(false);
  const Deadline waited_since = *waited_since_;
  const UnderWay job = pop();
  if (!came) return Error::make(ErrorCode::unavailable, "{}", came.error().message);
  late_ = !*came;
  if (late_) return give_up_late(job);
  TESSERA_TRY(check_reply(job, sums.size()));
  unpack_sums(reply_.body, sum_type(worker_.payload_), sums);
  if (!all_finite(sums))
    return Error::make(ErrorCode::invalid, "sums that are not finite, of layer {}",
                       reply_.header.layer);
  const auto compute = at_most_since(job.submitted, reply_.header.compute_us);
  worker_.times_.learn(job.pairs, compute);
  const auto waited =
      std::chrono::duration_cast<std::chrono::microseconds>(collected_ - waited_since);
  arrivals_.learn(job.pairs, std::max(compute, waited));
  return ExpertReport{.compute_us = compute.count(),
                      .bytes_sent = job.bytes,
                      .bytes_received = static_cast<std::int64_t>(reply_.body.size())};
}

Error RemoteExperts::give_up_late(const UnderWay& job) {
  Error error = Error::make(ErrorCode::cancelled, "no sums within {} ms",
                            std::chrono::ceil<std::chrono::milliseconds>(job.limit).count());
  if (worker_.required_)
    job.session->give_up({.why = error.message, .late = true});
  else
    job.session->abandon(job.ticket);
  return error;
}

// What a worker may get wrong after check_frame; then the connection is not worth keeping.
Status RemoteExperts::check_reply(const UnderWay& job, std::size_t values) const {
  if (reply_.error) return Error::make(ErrorCode::internal, "{}", reply_.error->text);
  if (reply_.header.status == JobStatus::expired)
    return Error::make(ErrorCode::cancelled, "the job waited too long at the worker");
  if (reply_.header.status == JobStatus::ok && reply_.header.rows == job.rows &&
      reply_.header.out_type == sum_type(worker_.payload_) &&
      reply_.body.size() == wire_bytes(sum_type(worker_.payload_), values))
    return {};
  Error error = Error::make(ErrorCode::unavailable, "sums of {} rows where {} are due",
                            reply_.header.rows, job.rows);
  job.session->give_up({.why = error.message});
  return error;
}

void RemoteExperts::drop() {
  while (!jobs_.empty()) {
    const UnderWay job = pop();
    job.session->abandon(job.ticket);
  }
}

}  // namespace tessera::worker
