#include "device/gpu/plugin/side_queue.h"

namespace tessera::gpu {

Result<SideQueue> SideQueue::create() {
  SideQueue side;
  TESSERA_ASSIGN(side.queue_, Stream::create());
  TESSERA_ASSIGN(side.forked_, Event::create());
  for (Event& event : side.done_) {
    TESSERA_ASSIGN(event, Event::create());
  }
  return side;
}

Status SideQueue::follow(GpuStream main) {
  TESSERA_TRY(status_of(GPU(EventRecord)(forked_.get(), main), "work beside a step"));
  return status_of(GPU(StreamWaitEvent)(queue_.get(), forked_.get(), 0), "work beside a step");
}

Status SideQueue::mark(int place) {
  const auto at = static_cast<std::size_t>(place);
  under_way_[at] = true;
  return status_of(GPU(EventRecord)(done_[at].get(), queue_.get()), "work beside a step");
}

Status SideQueue::join(GpuStream main, int place) {
  const auto at = static_cast<std::size_t>(place);
  if (!under_way_[at]) return {};
  under_way_[at] = false;
  return status_of(GPU(StreamWaitEvent)(main, done_[at].get(), 0), "work beside a step");
}

void SideQueue::forget() {
  for (bool& place : under_way_) place = false;
}

Status SideQueue::join_all(GpuStream main) {
  for (int place = 0; place < kPlaces; ++place) TESSERA_TRY(join(main, place));
  return {};
}

}  // namespace tessera::gpu
