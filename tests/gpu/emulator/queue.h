// What the runtime's calls are made of: queues that are threads, events, and a GPU's failure.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace emulated {

using Work = std::function<void()>;

inline thread_local int device = 0;  // the thread's current one

// What comes to one GPU for good when so many kernels were launched there: the variable is
// INDEX:LAUNCHES.
struct Fault {
  int index = -1;
  std::atomic<int> left{0};

  explicit Fault(const char* variable) {
    int launches = 0;
    const char* text = std::getenv(variable);
    if (text == nullptr || std::sscanf(text, "%d:%d", &index, &launches) != 2) index = -1;
    left = launches;
  }
  bool came() const { return index >= 0 && left <= 0; }
  bool came_to(int which) const { return which == index && came(); }
  void launched(int on) {
    if (on == index && left > 0) --left;
  }
};
// It fails. What is on its queues then is never done, and who waits for it waits for good.
inline Fault& fault_of_all() {
  static Fault fault("EMULATED_FAULT");
  return fault;
}
// Nothing on its queues goes on, and nothing says so.
inline Fault& stall_of_all() {
  static Fault stall("EMULATED_STALL");
  return stall;
}

struct Graph {
  std::vector<Work> work;
};

// Of one queue and of those that follow its events meanwhile. Its graph has their work one after
// the other, in the order of the calls.
struct Capture {
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  std::vector<struct Stream*> others;  // than the first one
  bool ended = false;
};

// What a queue has of an event outlives it.
struct Event {
  struct Counts {
    std::atomic<std::uint64_t> recorded{0}, reached{0};

    template <typename Ended>
    void wait(std::uint64_t wanted, Ended ended) {
      while (reached.load() < wanted && !ended())
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  };
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  std::shared_ptr<Capture> capture;  // that it was last recorded in
  struct Stream* recorded_on = nullptr;
  int behind = 0;  // how much of that one's work there
};

struct Stream {
  Stream() : thread([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void enqueue(Work work) {
    const std::lock_guard lock(mutex);
    if (capture != nullptr && !capture->ended) {
      capture->graph->work.push_back(std::move(work));
      ++captured;
      return;
    }
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  // Until nothing is left to do, or it waits for an event where that is enough.
  void wait(bool waiting_too = false) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return (queue.empty() && !busy) || (waiting_too && waiting); });
  }
  void wait_for(Event::Counts& counts, std::uint64_t wanted) {
    set_waiting(true);
    counts.wait(wanted, [this] { return given_up(); });
    set_waiting(false);
  }
  void set_waiting(bool now) {
    const std::lock_guard lock(mutex);
    waiting = now;
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const Work work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      while (stall_of_all().came_to(index))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!given_up()) work();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  // Its work is not done: of the GPU that has failed, or behind a wait for that one.
  bool given_up() const { return dropping || fault_of_all().came_to(index); }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::shared_ptr<Capture> capture;  // that it is or was part of
  bool captures = false;             // it is the first one
  int captured = 0, joined = 0;      // pieces of work; those that the first one has waited for
  bool busy = false, waiting = false, ending = false;
  std::atomic<bool> dropping{false};
  const int index = device;
  std::thread thread;
};

}  // namespace emulated
