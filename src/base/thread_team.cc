#include "base/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/pause.h"

namespace tessera {
namespace {

template <typename Done>
bool spin_for(std::chrono::microseconds limit, Done done) {
  const auto end = std::chrono::steady_clock::now() + limit;
  // Giving the processor away now and then: with fewer cores than threads, who is waited for may
  // need this one.
  for (int round = 0;; ++round) {
    for (int i = 0; i < 128; ++i) {
      if (done()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() >= end) return done();
    if (round % 8 == 7) std::this_thread::yield();
  }
}

void bind_to(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

int TeamMember::size() const {
  return team_.size();
}
void TeamMember::barrier() {
  team_.arrive_and_wait();
}

ThreadTeam::ThreadTeam(const ThreadTeamOptions& options)
    : spin_(options.spin), own_(static_cast<std::size_t>(std::max(1, options.threads))) {
  for (int i = 1; i < options.threads; ++i) workers_.emplace_back();
  try {
    for (int i = 1; i < options.threads; ++i) {
      std::thread& worker = workers_[static_cast<std::size_t>(i - 1)];
      worker = std::thread([this, i] { work(i); });
      if (static_cast<std::size_t>(i) < options.cpus.size())
        bind_to(worker, options.cpus[static_cast<std::size_t>(i)]);
    }
  } catch (...) {
    // The system has no more threads: those that started end first.
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_)
    if (worker.joinable()) worker.join();
}

void ThreadTeam::arrive_and_wait() {
  if (workers_.empty()) {
    next_.store(0, std::memory_order_relaxed);
    return;
  }
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    // Everyone is here, so nobody takes pieces: the counter is free for the next for_each.
    next_.store(0, std::memory_order_relaxed);
    waiting_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (parked_at_barrier_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    return;
  }
  const auto passed = [&] { return generation_.load(std::memory_order_acquire) != generation; };
  if (spin_for(spin_, passed)) return;
  parked_at_barrier_.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.load(std::memory_order_seq_cst) == generation) generation_.wait(generation);
  parked_at_barrier_.fetch_sub(1, std::memory_order_relaxed);
}

// Nobody takes pieces now.
void ThreadTeam::begin_run() {
  next_.store(0, std::memory_order_relaxed);
  resting_.store(false, std::memory_order_relaxed);
  for (Own& own : own_)
    for (std::atomic<int>& next : own.next) next.store(0, std::memory_order_relaxed);
}

void ThreadTeam::run_erased(Entry entry, void* function) {
  TeamMember self(*this, 0);
  begin_run();
  if (workers_.empty()) {
    entry(function, self);
    return;
  }
  entry_ = entry;
  function_ = function;
  // Sequentially consistent on both sides: a worker that parks either sees the new epoch or is seen
  // here.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  entry(function, self);
  arrive_and_wait();
}

void ThreadTeam::work(int index) {
  TeamMember self(*this, index);
  std::uint32_t seen = 0;
  for (;;) {
    const auto woken = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    spin_for(spin_, [&] { return woken() || resting_.load(std::memory_order_relaxed); });
    if (!woken()) {
      parked_.fetch_add(1, std::memory_order_seq_cst);
      while (epoch_.load(std::memory_order_seq_cst) == seen) epoch_.wait(seen);
      parked_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    entry_(function_, self);
    arrive_and_wait();
  }
}

}  // namespace tessera
