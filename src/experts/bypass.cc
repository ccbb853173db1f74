#include "experts/bypass.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/check.h"

namespace tessera {
namespace {

using std::chrono::microseconds;

// Times are not exact, and a worker near the host's speed should not come and go.
constexpr double kBearable = 1.5;
constexpr int kInARow = 2;
constexpr double kKept = 15.0 / 16;  // of losses, at each job that does not lose

// What a try may lose, as a wake-up on a busy machine does, and what is left of patience then.
constexpr double kTryShareOfPatience = 1.0 / 20;
constexpr double kProbation = 1.0 / 2;

constexpr microseconds kFirstPause{250'000};
constexpr microseconds kMostPause{60'000'000};
constexpr microseconds kSettled{60'000'000};
// So that tries cost a twentieth of the time at most.
constexpr double kTryShare = 20;

microseconds pause_after(microseconds pause, double lost_us) {
  const double wanted = std::max(static_cast<double>(pause.count()), kTryShare * lost_us);
  return std::min(kMostPause, microseconds(static_cast<std::int64_t>(
                                  std::min(wanted, static_cast<double>(kMostPause.count())))));
}

std::string text_of(std::size_t size) {
  const std::size_t* most = PairPace::kMostPairs;
  if (size == 0) return fmt::format("jobs of up to {} pairs", most[0]);
  if (size + 1 == PairPace::kSizes) return fmt::format("jobs of over {} pairs", most[size - 1]);
  return fmt::format("jobs of {} to {} pairs", most[size - 1] + 1, most[size]);
}

}  // namespace

struct Bypass::Jobs {
  double lost_us = 0;
  int losing = 0;  // jobs in a row
  microseconds pause{0};
  std::optional<Clock::time_point> back;  // when the last bypass ended
  bool passed = false;
  std::atomic<Clock::rep> until{0};  // passed: when it is tried again

  void pass_until(Clock::time_point time) {
    until.store(time.time_since_epoch().count(), std::memory_order_relaxed);
  }
  bool waits(Clock::time_point now) const {
    return now.time_since_epoch().count() < until.load(std::memory_order_relaxed);
  }
};

struct Bypass::Worker {
  std::array<Jobs, PairPace::kSizes> jobs;
};

Bypass::Bypass(int workers, microseconds patience)
    : patience_us_(static_cast<double>(patience.count())),
      workers_(static_cast<std::size_t>(workers)),
      of_workers_(std::make_unique<Worker[]>(workers_)) {}

Bypass::~Bypass() = default;

std::string Bypass::size_text(std::size_t pairs) {
  return text_of(PairPace::size_of(pairs));
}

bool Bypass::passes_over(int worker, std::size_t pairs, Clock::time_point now) {
  CHECK(static_cast<std::size_t>(worker) < workers_);
  Jobs& jobs = of_workers_[static_cast<std::size_t>(worker)].jobs[PairPace::size_of(pairs)];
  if (!jobs.passed) return false;
  if (jobs.waits(now)) return true;
  jobs.pass_until(now + jobs.pause);  // one try, whatever comes of it
  return false;
}

BypassChange Bypass::learn(int worker, const Spent& spent, Clock::time_point now) {
  CHECK(static_cast<std::size_t>(worker) < workers_);
  Jobs& jobs = of_workers_[static_cast<std::size_t>(worker)].jobs[PairPace::size_of(spent.pairs)];
  if (spent.host_us <= 0) return BypassChange::none;
  const double lost = spent.us - kBearable * spent.host_us;
  if (jobs.passed) {
    if (lost > kTryShareOfPatience * patience_us_) {
      jobs.pause = pause_after(2 * jobs.pause, lost);
      jobs.pass_until(now + jobs.pause);
      return BypassChange::none;
    }
    jobs.passed = false;
    jobs.pass_until({});
    jobs.back = now;
    jobs.lost_us = kProbation * patience_us_;
    jobs.losing = 0;
    return BypassChange::ended;
  }
  jobs.lost_us = std::clamp(jobs.lost_us + lost, 0.0, 2 * patience_us_);
  if (lost <= 0) jobs.lost_us *= kKept;
  jobs.losing = lost > 0 ? jobs.losing + 1 : 0;
  if (jobs.lost_us <= patience_us_ || jobs.losing < kInARow) return BypassChange::none;
  const bool settled = !jobs.back || now - *jobs.back >= kSettled;
  jobs.pause = pause_after(settled ? kFirstPause : 2 * jobs.pause, lost);
  jobs.passed = true;
  jobs.pass_until(now + jobs.pause);
  return BypassChange::begun;
}

std::optional<std::string> Bypass::passed_over(int worker, Clock::time_point now) const {
  CHECK(static_cast<std::size_t>(worker) < workers_);
  std::string text;
  for (std::size_t size = 0; size < PairPace::kSizes; ++size)
    if (of_workers_[static_cast<std::size_t>(worker)].jobs[size].waits(now))
      text += fmt::format("{}{}", text.empty() ? "" : ", ", text_of(size));
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace tessera
