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

// EMULATED_FAULT=INDEX:LAUNCHES makes that GPU fail for good when so many kernels were launched.
// What is on its queues then is never done, and who waits for it waits for good.
struct Fault {
  int index = -1;
  std::atomic<int> left{0};

  Fault() {
    int launches = 0;
    const char* text = std::getenv("EMULATED_FAULT");
    if (text == nullptr || std::sscanf(text, "%d:%d", &index, &launches) != 2) index = -1;
    left = launches;
  }
  bool came() const { return index >= 0 && left <= 0; }
  bool came_to(int which) const { return which == index && came(); }
};
inline Fault& fault_of_all() {
  static Fault fault;
  return fault;
}

struct Graph {
  std::vector<Work> work;
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
    if (captured != nullptr) {
      captured->work.push_back(std::move(work));
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
  std::unique_ptr<Graph> captured;
  bool busy = false, waiting = false, ending = false;
  std::atomic<bool> dropping{false};
  const int index = device;
  std::thread thread;
};

}  // namespace emulated
