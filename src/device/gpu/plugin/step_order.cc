#include "device/gpu/plugin/step_order.h"

#include <atomic>
#include <map>

namespace tessera::gpu {

struct StepOrder::Gpu {
  std::mutex mutex;
  std::atomic<int> members{0};
  std::atomic<bool> spoilt{false};
  const Member* last = nullptr;  // whose step was enqueued last, while others are there
};

struct StepOrder::Member {
  explicit Member(Gpu& on) : gpu(on) { ++gpu.members; }
  ~Member() {
    const std::lock_guard lock(gpu.mutex);
    if (gpu.last == this) gpu.last = nullptr;  // it has ended, or all is lost
    --gpu.members;
  }
  Gpu& gpu;
  Event ended;
};

StepOrder::StepOrder() = default;
StepOrder::StepOrder(StepOrder&&) noexcept = default;
StepOrder& StepOrder::operator=(StepOrder&&) noexcept = default;
StepOrder::~StepOrder() = default;

StepOrder::Gpu& StepOrder::gpu(int index) {
  static std::mutex mutex;
  static std::map<int, Gpu> all;
  const std::lock_guard lock(mutex);
  return all[index];
}

Result<StepOrder> StepOrder::join(int index) {
  StepOrder order;
  order.member_ = std::make_unique<Member>(gpu(index));
  TESSERA_ASSIGN(order.member_->ended, Event::create());
  return order;
}

bool StepOrder::shared() const {
  return member_ != nullptr && member_->gpu.members > 1;
}

std::unique_lock<std::mutex> StepOrder::begin() const {
  return std::unique_lock(member_->gpu.mutex);
}

Status StepOrder::wait(GpuStream stream) const {
  const Member* last = member_->gpu.last;
  if (last == nullptr || last == member_.get()) return {};
  return status_of(GPU(StreamWaitEvent)(stream, last->ended.get(), 0), "the GPU's turn");
}

Status StepOrder::end(GpuStream stream) const {
  TESSERA_TRY(status_of(GPU(EventRecord)(member_->ended.get(), stream), "the GPU's turn"));
  member_->gpu.last = member_.get();
  return {};
}

void StepOrder::spoil() {
  if (member_ != nullptr) member_->gpu.spoilt = true;
}

bool StepOrder::sound() const {
  return member_ != nullptr && !member_->gpu.spoilt;
}

}  // namespace tessera::gpu
