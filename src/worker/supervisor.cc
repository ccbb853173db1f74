#include "worker/supervisor.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/within_memory.h"
#include "worker/owned_experts.h"

namespace tessera::worker {
namespace {
// Attaching is a few frames; loading comes after it, in the handshake.
constexpr auto kAttachLimit = std::chrono::seconds(10);
// What a healthy worker has not told yet at the end, it tells in a round trip a layer.
constexpr auto kCollectTime = std::chrono::milliseconds(500);
constexpr auto kMemoryPause = std::chrono::milliseconds(100);
// A slow worker is suspect again and again; of this often at most there is a line.
constexpr auto kSuspectPause = std::chrono::seconds(10);
constexpr const char* kRefusals = "tessera_worker_refusals_total";
constexpr const char* kRefusalsHelp = "Times that a worker refused to serve, or was refused (isa).";

// One that has failed does not come back by itself: somebody must act.
LogLevel level_of(WorkerState now) {
  if (now == WorkerState::failed) return LogLevel::error;
  return now == WorkerState::dead ? LogLevel::warn : LogLevel::info;
}

// What stays so as long as both ends are what they are.
bool is_mismatch(RefuseReason reason) {
  using enum RefuseReason;
  return reason == version || reason == model || reason == dims || reason == role ||
         reason == types || reason == limits || reason == authentication;
}
}  // namespace

Supervisor::Supervisor(SupervisorOptions options, Starter starter, MetricsRegistry& metrics)
    : options_(std::move(options)),
      starter_(std::move(starter)),
      metrics_(metrics),
      state_gauge_(metrics.gauge("tessera_worker_state",
                                 "0 starting, 1 healthy, 2 suspect, 3 dead, 4 backoff, 5 stopped, "
                                 "6 failed.",
                                 {{"worker", options_.name}})),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      standing_(options_.lifecycle.most_restarts),
      lifecycle_(options_.lifecycle, Clock::now()),
      build_(options_.build) {
  CHECK(static_cast<bool>(wake_), "no descriptor left for a supervisor");
  thread_ = std::thread([this] { run(); });
}

Supervisor::~Supervisor() {
  stop();
}

void Supervisor::begin_stop() {
  standing_.begin_stop();
  interrupter_.interrupt();
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Supervisor::stop() {
  begin_stop();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Supervisor::run() {
  while (!standing_.stopping()) {
    const Status done = within_memory([this]() -> Status {
      step();
      return {};
    });
    if (done) continue;
    // It is taken again, once others have given some memory back.
    interrupter_.forget();
    pause(after(kMemoryPause));
  }
  const bool leaves = !process_ || may_leave_by_itself();
  const WorkerState before = lifecycle_.state();
  lifecycle_.stop(Clock::now());
  publish(before, "stopped");
  end_worker(leaves);
}

// Whom a goodbye may reach: it answers, and nobody waits for more of it.
bool Supervisor::may_leave_by_itself() const {
  return lifecycle_.state() == WorkerState::healthy && live_ && !live_->closed() &&
         !live_->health().oldest_job;
}

void Supervisor::end_worker(bool by_itself) {
  StopTimes times = options_.stop;
  if (!by_itself) {
    times.bye = std::chrono::milliseconds(0);
    if (live_) live_->close();
  }
  const auto say_bye = [this, by_itself] {
    if (!live_) return;
    if (by_itself) live_->collect_routing(after(kCollectTime));
    (void)live_->say_bye();
  };
  if (!process_) {
    say_bye();
  } else if (const Status ended = process_->stop(times, say_bye); !ended) {
    log_error("{}: {}", options_.name, ended.error().message);
  }
  if (live_) live_->close();
  live_.reset();
  process_.reset();
}

void Supervisor::step() {
  switch (lifecycle_.state()) {
    case WorkerState::starting:
      return start_worker();
    case WorkerState::healthy:
    case WorkerState::suspect:
      return watch();
    case WorkerState::dead:
      return bury();
    case WorkerState::failed:
      if (!options_.lifecycle.reappears) return pause(Deadline::max());  // for stop()
      [[fallthrough]];
    case WorkerState::backoff: {
      const WorkerState before = lifecycle_.state();
      pause(lifecycle_.next_look(Clock::now()));
      lifecycle_.tick(Clock::now());
      return publish(before, "backoff is over");
    }
    case WorkerState::stopped:
      return;
  }
}

void Supervisor::start_worker() {
  count("tessera_worker_starts_total",
        "Times that a worker was started: the first, or after it was lost as the reason says.",
        last_death_ ? death_reason_name(*last_death_) : "first");
  const Deadline deadline = after(options_.start_limit);
  Hello hello = options_.hello;
  while (const std::optional<Refuse> refuse = start_with(hello, deadline)) {
    const bool lacks_room = refuse->reason == RefuseReason::memory && options_.fewer_experts;
    std::optional<Hello> fewer = lacks_room ? options_.fewer_experts(hello, *refuse) : std::nullopt;
    if (!fewer) return refused(*refuse);
    count(kRefusals, kRefusalsHelp, refuse_reason_name(refuse->reason));
    end_worker(false);
    hello = *std::move(fewer);
  }
}

// Its refusal; nothing where it serves, or was lost for another reason.
std::optional<Refuse> Supervisor::start_with(const Hello& hello, Deadline deadline) {
  Result<StartedWorker> started = starter_(std::min(deadline, after(kAttachLimit)), interrupter_);
  if (!started) {
    interrupter_.forget();
    if (!standing_.stopping()) lose(DeathReason::start_failed, started.error().message);
    return std::nullopt;
  }
  process_ = std::move(started->process);
  if (started->refused) {
    interrupter_.forget();
    return started->refused;
  }
  Channel& channel = *started->channel;
  std::optional<ModelSender> sender;
  if (options_.model != nullptr)
    sender.emplace(*options_.model, SenderOptions{.to = options_.name});
  Result<HandshakeReply> reply = client_handshake(
      channel, hello, deadline, sender ? &*sender : nullptr, options_.lifecycle.loading_silence);
  interrupter_.forget();
  if (standing_.stopping()) return std::nullopt;
  if (!reply) {
    lose(DeathReason::start_failed, reply.error().message);
    return std::nullopt;
  }
  if (const Refuse* refuse = std::get_if<Refuse>(&*reply)) return *refuse;
  const HelloAck& ack = std::get<HelloAck>(*reply);
  if (const Status same = check_isa(ack.build, options_.isa); !same) {
    refuse(same.error());
    return std::nullopt;
  }
  standing_.set_mismatch(false);
  compare_build(ack.build);
  tell_released(hello);
  live_ = std::make_shared<Session>(std::move(started->channel), hello, ack, options_.counts);
  lifecycle_.started(Clock::now());
  publish(WorkerState::starting, "handshake done");
  return std::nullopt;
}

void Supervisor::tell_released(const Hello& hello) {
  if (!options_.fewer_experts) return;
  const int all = count_owned(options_.hello), kept = count_owned(hello);
  metrics_
      .gauge("tessera_worker_experts_released",
             "Experts that the worker has no room for and the host computes in its place.",
             {{"worker", options_.name}})
      .set(all - kept);
  if (kept < all)
    log_warn("{} has room for {} of its {} experts: the host computes the others", options_.name,
             kept, all);
}

void Supervisor::refused(const Refuse& refuse) {
  standing_.set_mismatch(is_mismatch(refuse.reason));
  count(kRefusals, kRefusalsHelp, refuse_reason_name(refuse.reason));
  lose(DeathReason::refused, fmt::format("it refuses ({})", refusal_text(refuse)));
}

// A worker that would serve.
void Supervisor::refuse(const Error& reason) {
  standing_.set_mismatch(true);
  count(kRefusals, kRefusalsHelp, "isa");
  lose(DeathReason::refused, reason.message);
}

// It serves all the same; what was said of it before holds no more.
void Supervisor::compare_build(const WorkerBuild& now) {
  if (build_ && *build_ != now) {
    metrics_
        .counter("tessera_worker_build_changes_total",
                 "Times that a worker came as another program, or on another processor.",
                 {{"worker", options_.name}})
        .add();
    log_warn(
        "{} computes with {} now and no longer with {}: the last bits of its results may differ",
        options_.name, build_text(now), build_text(*build_));
  }
  build_ = now;
}

void Supervisor::watch() {
  pause(lifecycle_.next_look(Clock::now()));
  if (standing_.stopping()) return;
  const Status alive = live_->beat();
  const bool broken = !alive && alive.error().code == ErrorCode::invalid;
  const Session::GivenUp given_up = alive ? Session::GivenUp{} : live_->given_up();
  // One that is let go ends too.
  if (given_up.late) return lose(DeathReason::hung, given_up.why);
  if (!broken && process_ && process_->ended()) return lose(DeathReason::exited, process_->how());
  if (!alive) {
    if (!broken && process_ && process_->wait(kExitFollows))
      return lose(DeathReason::exited, process_->how());
    return lose(broken ? DeathReason::protocol : DeathReason::disconnected,
                given_up.why.empty() ? alive.error().message : given_up.why);
  }
  const WorkerState before = lifecycle_.state();
  const Session::Health health = live_->health();
  if (standing_.hurries()) lifecycle_.hurry(Clock::now());
  if (const auto reason = lifecycle_.tick(Clock::now(), health))
    return lose(*reason, "it does not answer");
  const bool late = health.late || health.abandoned > 0;
  const bool suspect = lifecycle_.state() == WorkerState::suspect;
  if (before != WorkerState::suspect && suspect)
    count("tessera_worker_suspicions_total", "Times that a worker was silent or late with a job.",
          late ? "late" : "silent");
  publish(before, !suspect ? "it answers" : late ? "late with a job" : "silent");
}

void Supervisor::count(const char* name, const char* help, const char* reason) {
  metrics_.counter(name, help, {{"worker", options_.name}, {"reason", reason}}).add();
}

void Supervisor::lose(DeathReason reason, const std::string& detail) {
  count("tessera_worker_deaths_total", "Workers lost.", death_reason_name(reason));
  last_death_ = reason;
  if (reason != DeathReason::refused) standing_.set_mismatch(false);
  const WorkerState before = lifecycle_.state();
  lifecycle_.lost(Clock::now());
  publish(before, detail);
}

void Supervisor::bury() {
  end_worker(false);
  lifecycle_.buried(Clock::now());
  const std::string next = fmt::format("next start in {} ms", lifecycle_.backoff().count());
  if (!lifecycle_.failed()) return publish(WorkerState::dead, next);
  publish(WorkerState::dead,
          fmt::format(
              "{} {} within {} s were not enough; {}", options_.lifecycle.most_restarts,
              options_.lifecycle.reappears ? "attempts" : "restarts",
              std::chrono::duration_cast<std::chrono::seconds>(options_.lifecycle.restart_window)
                  .count(),
              options_.lifecycle.reappears ? next : "it is not started again"));
}

// Sleeps until `until`, stop(), or the end of the worker.
void Supervisor::pause(Deadline until) {
  pollfd entries[3] = {{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, 0, 0}};
  if (process_ && process_->pidfd() >= 0) entries[1].fd = process_->pidfd();
  if (live_) entries[2].fd = live_->descriptor();
  const std::int64_t ns =
      std::max<std::int64_t>(0, std::chrono::nanoseconds(until - Clock::now()).count());
  const timespec timeout{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                         .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  (void)::ppoll(entries, 3, &timeout, nullptr);
}

// Once it is suspect, and once it no longer is.
bool Supervisor::is_worth_a_line(WorkerState before, WorkerState now) {
  if (now == WorkerState::suspect) {
    told_suspect_ = !suspect_told_at_ || Clock::now() - *suspect_told_at_ >= kSuspectPause;
    if (told_suspect_) suspect_told_at_ = Clock::now();
    return told_suspect_;
  }
  return before != WorkerState::suspect || now != WorkerState::healthy || told_suspect_;
}

void Supervisor::publish(WorkerState before, const std::string& reason) {
  const WorkerState now = lifecycle_.state();
  state_gauge_.set(static_cast<double>(now));
  const bool usable = now == WorkerState::healthy || now == WorkerState::suspect;
  standing_.publish({.before = before,
                     .now = now,
                     .failed = lifecycle_.failed(),
                     .session = usable ? live_ : nullptr,
                     .reason = reason});
  if (now != before && is_worth_a_line(before, now))
    log_at(level_of(now), "{}: {} -> {}: {}", options_.name, worker_state_name(before),
           worker_state_name(now), reason);
}

}  // namespace tessera::worker
