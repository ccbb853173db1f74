#include "experts/bypass.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"

namespace tessera {
namespace {

using std::chrono::microseconds;

// Most pairs of a job of each size but the last.
constexpr std::size_t kMostPairs[] = {16, 128, 1024};
constexpr const char* kSizeTexts[] = {"jobs of up to 16 pairs", "jobs of 17 to 128 pairs",
                                      "jobs of 129 to 1024 pairs", "jobs of over 1024 pairs"};

// Times are not exact, and a worker near the host's speed should not come and go.
constexpr double kBearable = 1.5;
constexpr int kInARow = 2;
constexpr double kKept = 15.0 / 16;      // of losses, at each job that does not lose
constexpr double kHostWeight = 1.0 / 8;  // of its last job

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
  std::array<Jobs, kSizes> jobs;
};

Bypass::Bypass(int workers, microseconds patience)
    : patience_us_(static_cast<double>(patience.count())),
      workers_(static_cast<std::size_t>(workers)),
      of_workers_(std::make_unique<Worker[]>(workers_)) {}

Bypass::~Bypass() = default;

std::size_t Bypass::size_of(std::size_t pairs) {
  const auto* at = std::lower_bound(std::begin(kMostPairs), std::end(kMostPairs), pairs);
  return static_cast<std::size_t>(at - std::begin(kMostPairs));
}

std::string Bypass::size_text(std::size_t pairs) {
  return kSizeTexts[size_of(pairs)];
}

void Bypass::learn_host(std::size_t pairs, double took_us) {
  if (pairs == 0) return;
  const double now = std::max(took_us, 1.0) / static_cast<double>(pairs);
  double& mean = host_pair_us_[size_of(pairs)];
  mean = mean == 0 ? now : mean + kHostWeight * (now - mean);
}

// A pair of a smaller job takes no less: more pairs share what is read.
double Bypass::host_us(std::size_t pairs) const {
  for (std::size_t size = size_of(pairs) + 1; size-- > 0;)
    if (host_pair_us_[size] > 0) return host_pair_us_[size] * static_cast<double>(pairs);
  return 0;
}

bool Bypass::passes_over(int worker, std::size_t pairs, Clock::time_point now) {
  CHECK(static_cast<std::size_t>(worker) < workers_);
  Jobs& jobs = of_workers_[static_cast<std::size_t>(worker)].jobs[size_of(pairs)];
  if (!jobs.passed) return false;
  if (jobs.waits(now)) return true;
  jobs.pass_until(now + jobs.pause);  // one try, whatever comes of it
  return false;
}

BypassChange Bypass::learn(int worker, std::size_t pairs, double spent_us, Clock::time_point now) {
  CHECK(static_cast<std::size_t>(worker) < workers_);
  Jobs& jobs = of_workers_[static_cast<std::size_t>(worker)].jobs[size_of(pairs)];
  const double host = host_us(pairs);
  if (host <= 0) return BypassChange::none;
  const double lost = spent_us - kBearable * host;
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
  for (std::size_t size = 0; size < kSizes; ++size)
    if (of_workers_[static_cast<std::size_t>(worker)].jobs[size].waits(now))
      text += fmt::format("{}{}", text.empty() ? "" : ", ", kSizeTexts[size]);
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace tessera
