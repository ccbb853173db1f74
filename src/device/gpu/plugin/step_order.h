// StepOrder: the steps of devices of this process on one GPU follow each other. Where several hold
// ranges of a model's layers there (`--target-turns`), a step of one begins when those of the
// others that were enqueued before have ended: a run (kernels/run.h) needs every multiprocessor,
// and of two side by side, each with some of its blocks on the GPU, both would wait for good. What
// a step waits for besides must have been enqueued before it, so that nothing waits in a circle.
//
//   TESSERA_ASSIGN(StepOrder order, StepOrder::join(index));   // by the device, for its life
//   TESSERA_TRY(order.follow(stream, [&] { return launch_all(); }));
//
// The host waits for nothing but another thread's launches. A device that is alone on its GPU pays
// nothing.
#pragma once

#include <memory>
#include <mutex>

#include "device/gpu/plugin/driver.h"

namespace tessera::gpu {

class StepOrder {
 public:
  StepOrder();
  // Of the current device, which is the driver's `index`.
  static Result<StepOrder> join(int index);
  StepOrder(StepOrder&&) noexcept;
  StepOrder& operator=(StepOrder&&) noexcept;
  ~StepOrder();

  // `launch()` enqueues a step, or a part of one, and returns its Status.
  template <typename F>
  Status follow(GpuStream stream, F&& launch) {
    if (!shared()) return launch();
    const auto turn = begin();
    TESSERA_TRY(wait(stream));
    Status launched = launch();
    Status ended = end(stream);  // of a part, too
    return launched ? std::move(ended) : std::move(launched);
  }

  // What this device has enqueued may never end: nothing may count on having the GPU for itself any
  // more.
  void spoil();
  bool sound() const;

 private:
  struct Gpu;
  struct Member;
  static Gpu& gpu(int index);
  bool shared() const;
  std::unique_lock<std::mutex> begin() const;
  Status wait(GpuStream stream) const;
  Status end(GpuStream stream) const;

  std::unique_ptr<Member> member_;
};

}  // namespace tessera::gpu
