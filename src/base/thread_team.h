// ThreadTeam: a fixed set of threads that run one function together (fork/join).
//
//   ThreadTeam team({.threads = 2});
//   team.run([&](TeamMember& member) {
//     member.for_each(rows, 1, [&](int begin, int end) { ... });   // ends with a barrier
//     member.for_each(groups, 4, [&](int begin, int end) { ... });
//   });
//
// The caller is member 0. Who waits, between runs or at a barrier, spins for `spin` and then
// sleeps, so a steady stream of short runs costs no system call and an idle team costs no CPU;
// rest() makes it sleep at once. Work is handed out in pieces of `grain` to whoever is free, or
// each member has a list of its own and helps the others when it is done (for_each_own); which
// member computes a piece must not change the result. run() is called by one thread at a time and
// is not re-entrant; the function must not throw. Inside a run every member must make the same
// sequence of for_each and barrier calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

class ThreadTeam;

class TeamMember {
 public:
  int index() const { return index_; }
  int size() const;

  // Waits until every member is here.
  void barrier();

  // Calls f(begin, end) for pieces that cover [0, count), then waits for everyone.
  template <typename F>
  void for_each(int count, int grain, F&& f) {
    for_each_nowait(count, grain, f);
    barrier();
  }
  // The same without waiting. Behind it comes a barrier before the next for_each.
  template <typename F>
  void for_each_nowait(int count, int grain, F&& f);

  // Calls f(owner, i), i in [0, count), for every member as the owner: for itself first and in
  // order, so that it has what its caches keep of these, then for whoever has some left. Does not
  // wait. There are kOwnLists of such lists, each to be used once a run.
  static constexpr int kOwnLists = 2;
  template <typename F>
  void for_each_own(int list, int count, F&& f);

 private:
  friend class ThreadTeam;
  TeamMember(ThreadTeam& team, int index) : team_(team), index_(index) {}

  ThreadTeam& team_;
  int index_;
};

struct ThreadTeamOptions {
  int threads = 1;
  std::chrono::microseconds spin{200};
  std::vector<int> cpus;  // member i is bound to cpus[i]; empty: not bound
};

class ThreadTeam {
 public:
  // Throws std::system_error where the system gives no more threads.
  explicit ThreadTeam(const ThreadTeamOptions& options);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Between runs: another team is to have the cores.
  void rest() { resting_.store(true, std::memory_order_relaxed); }

  template <typename F>
  void run(F&& function) {
    using Function = std::remove_reference_t<F>;
    run_erased([](void* f, TeamMember& member) { (*static_cast<Function*>(f))(member); },
               const_cast<void*>(static_cast<const void*>(std::addressof(function))));
  }

 private:
  friend class TeamMember;
  using Entry = void (*)(void* function, TeamMember& member);

  // How far the lists of a member are.
  struct alignas(64) Own {
    std::atomic<int> next[TeamMember::kOwnLists]{};
  };

  void stop();
  void begin_run();
  void run_erased(Entry entry, void* function);
  void work(int index);
  void arrive_and_wait();

  std::chrono::microseconds spin_;
  std::vector<std::thread> workers_;
  std::vector<Own> own_;  // by member
  Entry entry_ = nullptr;
  void* function_ = nullptr;

  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // rises with every run
  std::atomic<int> parked_{0};
  std::atomic<bool> resting_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int> waiting_{0};  // members at the barrier
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> parked_at_barrier_{0};
  alignas(64) std::atomic<int> next_{0};  // next piece of the for_each under way
};

template <typename F>
void TeamMember::for_each_nowait(int count, int grain, F&& f) {
  for (;;) {
    const int begin = team_.next_.fetch_add(grain, std::memory_order_relaxed);
    if (begin >= count) return;
    f(begin, begin + grain < count ? begin + grain : count);
  }
}

template <typename F>
void TeamMember::for_each_own(int list, int count, F&& f) {
  const int members = size();
  for (int n = 0; n < members; ++n) {
    const int owner = (index_ + n) % members;
    std::atomic<int>& next = team_.own_[static_cast<std::size_t>(owner)].next[list];
    while (next.load(std::memory_order_relaxed) < count) {
      const int i = next.fetch_add(1, std::memory_order_relaxed);
      if (i < count) f(owner, i);
    }
  }
}

}  // namespace tessera
