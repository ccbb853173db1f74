// SideQueue: work that runs beside a step's kernels and that a later one of them waits for.
//
//   TESSERA_TRY(side.fork(main, place, [&](GpuStream queue) { return bring_experts(...); }));
//   ...                                       // kernels on `main` that do not need it
//   TESSERA_TRY(side.join(main, place));      // the next one does
//
// It begins when all is done that was on `main` before. Where `main` is being captured the graph
// has it too: what was forked within a capture must be joined before it ends. One thread.
#pragma once

#include <array>

#include "device/gpu/plugin/driver.h"

namespace tessera::gpu {

class SideQueue {
 public:
  // So many pieces of work may be under way, each at a place of its own.
  static constexpr int kPlaces = 2;

  static Result<SideQueue> create();

  GpuStream queue() const { return queue_.get(); }

  // `enqueue(queue)` puts kernels there and returns their error.
  template <typename F>
  Status fork(GpuStream main, int place, F&& enqueue) {
    TESSERA_TRY(follow(main));
    TESSERA_TRY(status_of(enqueue(queue_.get()), "work beside a step"));
    return mark(place);
  }
  bool forked(int place) const { return under_way_[static_cast<std::size_t>(place)]; }
  // Something was forked and is not joined yet.
  bool busy() const { return under_way_[0] || under_way_[1]; }
  // Nothing where nothing was forked, or it was joined.
  Status join(GpuStream main, int place);
  Status join_all(GpuStream main);
  // What was forked never ran: a capture that failed.
  void forget();

 private:
  Status follow(GpuStream main);
  Status mark(int place);

  Stream queue_;
  Event forked_;
  std::array<Event, kPlaces> done_;
  std::array<bool, kPlaces> under_way_{};
};

}  // namespace tessera::gpu
